from __future__ import annotations

from collections.abc import Iterator

import pytest
from ledger import Ledger, open_unsynced

from pawl.home import Home


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    """The store's functions on the home's database."""
    connection = open_unsynced(home.database)
    yield Ledger(connection)
    connection.close()
