"""The whole schema as one text: ``schema.sql`` beside this file, to be read by people and compared by a test.

``python -m pawl.storage.schema`` writes it anew after a migration was added.
"""

from __future__ import annotations

import os
import sqlite3

from pawl.storage.database import migrate

PATH = os.path.join(os.path.dirname(__file__), "schema.sql")
_HEAD = "-- What all migrations together make. Written by `python -m pawl.storage.schema`; not executed by anything.\n"
# each table with what hangs on it, in the order in which they were made
_STATEMENTS = """
SELECT sql FROM sqlite_schema s WHERE sql IS NOT NULL
ORDER BY (SELECT t.rowid FROM sqlite_schema t WHERE t.type = 'table' AND t.name = s.tbl_name), s.rowid
"""


def schema_text() -> str:
    """The schema of a database that was just migrated from nothing."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(connection)
        statements = [sql for (sql,) in connection.execute(_STATEMENTS)]
    finally:
        connection.close()
    return _HEAD + "".join(f"\n{sql};\n" for sql in statements)


if __name__ == "__main__":
    with open(PATH, "w", encoding="utf-8") as file:
        file.write(schema_text())
