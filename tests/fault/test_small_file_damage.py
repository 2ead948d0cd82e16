"""Damage of checkpoint, abort and lock: a start needs none of them, loses nothing, and logs what it used."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.protocol.storage.layout import CHECKPOINT_MARK, CHECKPOINT_MARK_AT
from tests.store_tools import Sent, append, assert_holds, kill, open_store, overwrite, plain, put, reopen, restore, save
from tests.tools_runs import verified

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "emptied": lambda _: b"",
    "zeroed": lambda content: bytes(len(content)),
    "cut short": lambda content: content[: len(content) // 60],
    "half zeroed": lambda content: bytes(len(content) // 2) + content[len(content) // 2 :],
    "random": lambda content: random.Random(3).randbytes(len(content)),
    "longer": lambda content: content + b"\xff" * 100,
}
MARK_LOST = "FlintMQ's mark is missing or invalid"


def damage(path: Path, how: str) -> None:
    content = DAMAGES[how](path.read_bytes())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def filled(path: Path, *, stopped: bool) -> list[Sent]:
    """A store that was stopped cleanly, or killed with messages on disk that were not dispatched yet."""
    store = open_store(path)
    sent = put(store, "orders", 0, plain(70))
    store.sync_derived()
    sent += append(store, "orders", 1, plain(70))
    store.flush()
    if stopped:
        store.close()
    else:
        kill(store)
    return sent


def start(path: Path, sent: list[Sent]) -> None:
    """Check that everything is there, and that the next start logs nothing."""
    store, report = reopen(path)
    assert (report.truncated_bytes, report.quarantined) == (0, [])
    assert_holds(store, sent)
    store.close()


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_a_damaged_checkpoint_loses_nothing_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, stopped: bool
) -> None:
    path = tmp_path / "store"
    sent = filled(path, stopped=stopped)
    damage(path / "checkpoint", how)
    result = verified(path).findings
    said = [each.kind for each in result] or [note for note in result.notes if "checkpoint" in note]
    start(path, sent)
    if how == "longer":  # the bytes after its end are ignored
        assert MARK_LOST not in caplog.text
    else:
        assert MARK_LOST in caplog.text
        assert "checkpoint" in said or how == "gone"
    assert said
    caplog.clear()
    start(path, sent)
    assert caplog.text == ""
    assert verified(path).findings.total == 0


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_no_flipped_bit_of_the_checkpoint_loses_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stopped: bool
) -> None:
    path = tmp_path / "store"
    sent = filled(path, stopped=stopped)
    saved = save(path)
    whole = (path / "checkpoint").read_bytes()
    mark_end = CHECKPOINT_MARK_AT + CHECKPOINT_MARK.size
    for at in [*range(0, 40, 3), *range(CHECKPOINT_MARK_AT, mark_end, 2), mark_end]:
        restore(path, saved)
        overwrite(path / "checkpoint", at, bytes([whole[at] ^ 1 << at % 8]))
        caplog.clear()
        start(path, sent)
        assert (MARK_LOST in caplog.text) == (at < mark_end), at


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize(("name", "stopped"), [("lock", True), ("lock", False), ("abort", False)])
def test_a_damaged_lock_or_abort_loses_nothing(tmp_path: Path, name: str, stopped: bool, how: str) -> None:
    """Only their existence counts: the content of abort is for people, and the lock has none."""
    path = tmp_path / "store"
    sent = filled(path, stopped=stopped)
    damage(path / name, how)
    assert verified(path).findings.total == 0
    start(path, sent)
    assert not (path / "abort").exists()


def test_an_unexpected_abort_file_makes_a_start_recover_as_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = filled(path, stopped=True)
    (path / "abort").write_bytes(b"\xff" * 50)
    store, report = reopen(path)
    assert not report.clean
    assert_holds(store, sent)
    store.close()
    start(path, sent)
