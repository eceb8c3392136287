"""The control plane: tasks, settlement, ownership and recovery.

Owns: the task rows, their settlement intents, the audit log, the slots, the live tasks of this daemon.
Does not own: why a task exists (the engines), how a process is started and ended (the runner).
Authoritative for: the status of every task, which lives in its row and nowhere else.
Invariants: nothing starts before its row is durable; every terminal change is a compare-and-set on status and
owner; no output is visible before its promise is durable; recovery gives a row up only where its owner is proven
gone; a task that has ended and whose processes may live says so until they are proven ended.
Clock: monotonic for timeouts, heartbeats and grace; wall for what is shown and for queue times.

``model`` what can be true, ``store`` and ``queries.sql`` how it is written, ``audit`` the log of it, ``dispatcher``
who may start, ``supervisor`` the life of a running task, ``ending`` what its end proves, ``settlement`` how that
becomes true, ``recovery`` what a dead daemon left, ``engine`` all of it put together.
"""
