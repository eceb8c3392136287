"""Storage: one SQLite database, its one writer and its readers, and the content-addressed artifacts.

Owns: connections, pragmas, migrations, group commit, the mapping of SQLite's errors to ours, artifact files.
Does not own: what is stored. Nothing here knows a task; statements and stores live in the rooms above.
Authoritative for: what is durable. A call that has answered is on the disk.
Invariants: one connection writes and checkpoints, the others only read; a transaction is a plain function that
awaits nothing; an artifact is never changed, and its bytes are checked against its name at every read.
Clock: wall, as ``Transaction.now_ms``; the same for a whole transaction.
"""

from pawl.storage.artifacts import Artifact, ArtifactStore, Staged, open_plain
from pawl.storage.database import Database, database_version
from pawl.storage.queries import load_queries
from pawl.storage.reader import Reader
from pawl.storage.writer import Transaction, Writer

__all__ = [
    "Artifact",
    "ArtifactStore",
    "Database",
    "Reader",
    "Staged",
    "Transaction",
    "Writer",
    "database_version",
    "load_queries",
    "open_plain",
]
