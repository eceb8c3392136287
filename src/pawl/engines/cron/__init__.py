"""Cron: work that starts by the clock.

Owns: what a schedule is and when it fires next. In this version nothing else: `pawl cron next` shows it, and declared
jobs do not run yet.
Does not own: the running of work (the control plane), the form of a job in the file (the configuration).
Authoritative for: the next instant of a schedule.
Invariants: the same text, zone and instant always give the same answer, whatever the zone of the host.
Clock: none; instants are given.
"""
