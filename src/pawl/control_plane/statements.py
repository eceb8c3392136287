"""The control plane's statements, by name."""

from pawl.storage import load_queries

Q = load_queries("pawl.control_plane")
