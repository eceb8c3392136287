"""Cron: work that starts by the clock.

Owns: jobs and their fires: what a schedule is, when a job fires next, what becomes of a fire that nobody was there for
or that meets another one, and the record of each.
Does not own: the running of the work (the control plane), agents and their policies (delegation, handed in), the form
of a job in the file (the configuration).
Authoritative for: the tables ``cron_job`` and ``cron_fire``. A fire that has a task follows it, by trigger.
Invariants: one record for each nominal instant of a job; the next fire is stored in the transaction that claims this
one; a job whose run hangs, fails or was killed is not locked by it; nothing fires that is older than its catch-up rule
allows.
Clock: wall, for schedules and windows; its timer is the monotonic clock's, so a wall clock that is set is noticed.
"""
