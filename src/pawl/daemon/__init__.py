"""The daemon: the one process that owns a home.

``app`` is the only place that knows every room, and holds the order of starting and stopping. ``routes`` shows on one
page all that the daemon can do; ``handlers`` say how. ``lock`` keeps a second daemon out, ``callers`` knows who asks,
``notify`` tells systemd.
"""
