"""What each call does: read the request, ask the room that knows, shape the answer. No decisions here."""
