"""The runner: the process side of running work.

Owns: starting workers (through one keeper process for each daemon), their limits, their spool directories, their
exit records, finding every process of a task, and ending it.

Does not own: which task runs, when, and what its end means. It reads no row and writes none.

Authoritative for: whether a process lives (``identity``), whether a task was ever launched (the ``worker`` mark in
its spool), and how its worker ended (the exit record).

Invariants:

- A PID alone names nobody: PID, start and boot id do.
- The mark in the spool is made before the worker: a task without one was never launched, and once recovery has
  barred it, never will be.
- An exit record is in place before the worker's PID is free: a worker that is gone without a record has none.
- What cannot be read is never taken for success, nor for absence.
- Only processes whose identity was checked are signalled; the daemon, its keeper and init never.

Clock: the kernel's start ticks for identities, wall time for ``ended_at_ms`` alone, monotonic for every wait.

The keeper runs ``keeper``, ``spawn``, ``limits``, ``reap``, ``launch_mark``, ``small_file`` and ``kernel`` in a bare
interpreter, so those import no more than they must, and this file imports nothing.
"""
