"""What tests of the whole daemon stand on: a real daemon process, a plain client, and the invariant checker."""
