from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

WriteConfig = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteConfig:
    """Writes a real ``config.toml`` and answers its path."""

    def write_config(content: str | bytes) -> Path:
        path = tmp_path / "config.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_config
