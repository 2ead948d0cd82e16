"""ConsumeQueue units and index entries with a physical offset at an end of its range: differences must not wrap."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.broker.store import StoreSettings
from flintmq.protocol.storage.layout import INDEX_ENTRY, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, UNIT, UNIT_BYTES
from tests.store_tools import SMALL, assert_holds, kill, open_store, overwrite, plain, put, reopen
from tests.tools_runs import findings

SETTINGS = StoreSettings(
    commitlog_file_bytes=SMALL.commitlog_file_bytes,
    consumequeue_file_bytes=20 * 100,
    index_slots=500,
    index_entries=200,
    allocate_step_bytes=SMALL.allocate_step_bytes,
)
EXTREMES = (-(2**63), -(2**63) + 1, -1, 2**63 - 1, 2**63 - 100)
COUNT = 50


@pytest.mark.parametrize("physical_offset", EXTREMES)
@pytest.mark.parametrize("number", [0, 20, COUNT - 1])
def test_a_unit_with_an_extreme_offset_is_found_and_rewritten(
    tmp_path: Path, number: int, physical_offset: int
) -> None:
    path = tmp_path / "store"
    store = open_store(path, SETTINGS)
    sent = put(store, "orders", 0, plain(COUNT))
    store.close()
    at = number * UNIT_BYTES + UNIT.at["physical_offset"]
    queue = path / "consumequeue" / "orders" / "0" / ("0" * 20)
    overwrite(queue, at, physical_offset.to_bytes(8, "big", signed=True))
    kinds = {each.kind for each in findings(path)}
    assert "unit-wrong" in kinds
    assert "unit-order" in kinds or (physical_offset > 0 and number == COUNT - 1)
    store, report = reopen(path, SETTINGS)
    assert (report.quarantined, len(report.rebuilt)) == ([], 1)
    assert_holds(store, sent)
    kill(store)


@pytest.mark.parametrize("physical_offset", EXTREMES)
@pytest.mark.parametrize("number", [1, 20, COUNT])
def test_an_entry_with_an_extreme_offset_is_found_and_rebuilt(
    tmp_path: Path, number: int, physical_offset: int
) -> None:
    path = tmp_path / "store"
    store = open_store(path, SETTINGS)
    sent = put(store, "orders", 0, plain(COUNT))
    store.close()
    (index,) = (path / "index").iterdir()
    at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * SETTINGS.index_slots + 20 * number + INDEX_ENTRY.at["physical_offset"]
    overwrite(index, at, physical_offset.to_bytes(8, "big", signed=True))
    assert any(each.kind.startswith("index-") for each in findings(path))
    store, report = reopen(path, SETTINGS)
    assert (report.quarantined, len(report.rebuilt)) == ([], 1)
    assert_holds(store, sent)
    kill(store)
