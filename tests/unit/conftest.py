"""Fixtures that several files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delay_tools import DelayedStore


@pytest.fixture
def delayed(tmp_path: Path) -> Iterator[DelayedStore]:
    store = DelayedStore(tmp_path / "store")
    yield store
    store.stop()
