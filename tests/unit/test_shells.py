"""The client's blocking shells are those that the script generates from the asyncio ones."""

from __future__ import annotations

import pytest

from flintmq.scripts.lib.shells import ROOT, SHELLS, blocking

pytest.importorskip("ruff", reason="only the checks have it")


@pytest.mark.parametrize("source", SHELLS)
def test_there_is_nothing_to_regenerate(source: str) -> None:
    assert blocking(source) == (ROOT / SHELLS[source]).read_text("utf-8"), "run: python scripts/lib/shells.py"
