"""Pawl: one daemon that owns background work and tells the truth about it."""

__version__ = "0.1.0"
