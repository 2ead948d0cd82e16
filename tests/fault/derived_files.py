"""Stores whose ConsumeQueues and index are damaged and rebuilt."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flintmq.broker.store import MessageStore
from flintmq.protocol.storage.layout import INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tests.store_tools import (
    SMALL,
    Sent,
    assert_found,
    assert_holds,
    copy_store,
    index_files,
    kill,
    overwrite,
    plain,
    put,
    queue_files,
    reopen,
)

End = Callable[[MessageStore], None]
Filled = Callable[[End], tuple[Path, list[Sent]]]
Change = Callable[[Path], object]
QUEUE = Path("consumequeue") / "orders" / "1"


def close(store: MessageStore) -> None:
    store.close()


def sync_and_kill(store: MessageStore) -> None:
    """Kill the store just after queues and index were synced: recovery has nothing to dispatch."""
    store.sync_derived()
    kill(store)


both_ends = pytest.mark.parametrize("end", [sync_and_kill, kill])


def no_damage(path: Path) -> None:
    """Change nothing."""


def all_queues_gone(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def a_queue_gone(path: Path) -> None:
    shutil.rmtree(path / QUEUE)


def assert_rebuilt(filled: tuple[Path, list[Sent]], tmp_path: Path, damage: Change, *, reported: bool = True) -> None:
    """Check that all files are rebuilt byte for byte, stay that way, and that new messages can be appended."""
    source, sent = filled
    path = copy_store(source, tmp_path / "store")
    damage(path)
    store, report = reopen(path)
    assert report.rebuilt or not reported
    assert report.truncated_bytes == 0
    assert_holds(store, sent)
    kill(store)
    assert queue_files(path) == queue_files(source)
    assert index_files(path) == index_files(source)
    assert not list((path / "flintmq" / "aside").glob("*"))
    store, report = reopen(path)
    assert report.rebuilt == []
    new = [
        each for topic, queue in (("orders", 1), ("new", 0)) for each in put(store, topic, queue, plain(60, first=5000))
    ]
    store.close()
    store, report = reopen(path)
    assert report.rebuilt == []
    assert_holds(store, [*sent, *new], keys=False)
    assert_found(store, new)
    store.close()


# ---- Damages of ConsumeQueues and index files, each with what ``verify`` finds; a start rebuilds all of them.


@dataclass(frozen=True)
class Damage:
    """One damage of a stopped store. ``kinds``: of all findings; the first of them is for byte ``at`` of ``file``, the
    number of a file of ``QUEUE``, or of the index if all kinds begin with "index"."""

    apply: Callable[[Path], object]
    kinds: str
    file: int = 0
    at: int = -1


def queue_file(path: Path, number: int) -> Path:
    return sorted((path / QUEUE).iterdir())[number]


def index_file(path: Path, number: int) -> Path:
    return sorted((path / "index").iterdir())[number]


def cut(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def randomized(*files: Path) -> None:
    source = random.Random(5)
    for file in files:
        file.write_bytes(source.randbytes(file.stat().st_size))


def all_but_the_last_file_gone(path: Path) -> None:
    for file in sorted((path / QUEUE).iterdir())[:-1]:
        file.unlink()


def files_of_another_queue(path: Path) -> None:
    """As if two folders had been mixed up."""
    shutil.rmtree(path / QUEUE)
    shutil.copytree(path / "consumequeue" / "orders" / "3", path / QUEUE)


def two_units_changed_places(path: Path) -> None:
    held = queue_file(path, 0).read_bytes()
    overwrite(queue_file(path, 0), UNIT_7, held[160:180] + held[140:160])


def a_slot_of_another_chain(path: Path) -> None:
    held = index_file(path, 0).read_bytes()
    slots = struct.unpack_from(f">{SMALL.index_slots}i", held, INDEX_HEADER_BYTES)
    used = [number for number, head in enumerate(slots) if head]
    overwrite(index_file(path, 0), INDEX_HEADER_BYTES + 4 * used[3], struct.pack(">i", slots[used[4]]))


def unit(blob: bytes) -> Callable[[Path], None]:
    """Replace unit 7 of the first file."""
    return lambda path: overwrite(queue_file(path, 0), UNIT_7, blob)


def header(number: int, at: int, form: str, value: int) -> Callable[[Path], None]:
    """Replace a number in the header of an index file."""
    return lambda path: overwrite(index_file(path, number), at, struct.pack(form, value))


UNIT_7 = 7 * UNIT_BYTES
ENTRIES_AT = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * SMALL.index_slots
QUEUE_DAMAGES = {
    "all queues gone": Damage(all_queues_gone, "unit-missing queue-end", 0, 0),
    "a topic gone": Damage(lambda path: shutil.rmtree((path / QUEUE).parent), "unit-missing queue-end", 0, 0),
    "a queue gone": Damage(a_queue_gone, "unit-missing queue-end", 0, 0),
    "first file gone": Damage(lambda path: queue_file(path, 0).unlink(), "unit-missing", 0, 0),
    "second file gone": Damage(lambda path: queue_file(path, 1).unlink(), "unit-missing unit-order file-size", 1, 0),
    "last file gone": Damage(lambda path: queue_file(path, -1).unlink(), "unit-missing queue-end", 2, 0),
    "only the last file left": Damage(all_but_the_last_file_gone, "unit-missing", 0, 0),
    "file cut short": Damage(lambda path: cut(queue_file(path, 1), 333), "file-size unit-missing unit-order", 1, 333),
    "last file cut to nothing": Damage(lambda path: cut(queue_file(path, -1), 0), "unit-missing queue-end", 2, 0),
    "file too long": Damage(lambda path: cut(queue_file(path, 0), 1001), "file-size", 0, 1000),
    "file zeroed": Damage(lambda path: zeroed(queue_file(path, 1)), "unit-missing unit-order", 1, 0),
    "last file zeroed": Damage(lambda path: zeroed(queue_file(path, -1)), "unit-missing queue-end", 2, 0),
    "queue zeroed": Damage(lambda path: [*map(zeroed, (path / QUEUE).iterdir())], "unit-missing queue-end", 0, 0),
    "file random": Damage(
        lambda path: randomized(queue_file(path, 1)), "unit-order unit-missing unit-stray unit-wrong", 1
    ),
    "every file random": Damage(
        lambda path: randomized(*sorted((path / "consumequeue").rglob("0" * 10 + "*"))),
        "unit-order unit-missing unit-stray unit-wrong queue-end",
    ),
    "files of another queue": Damage(files_of_another_queue, "unit-wrong unit-missing queue-end", 0, 0),
    "a unit of ones": Damage(unit(b"\xff" * 20), "unit-missing unit-order", 0, UNIT_7),
    "a unit beyond the log": Damage(unit(UNIT.pack(1 << 60, 200, 0)), "unit-wrong unit-stray unit-order", 0, UNIT_7),
    "a unit gone": Damage(unit(bytes(20)), "unit-missing unit-order", 0, UNIT_7),
    "a unit that fills": Damage(unit(UNIT.pack(0, PRE_BLANK_SIZE, 0)), "unit-wrong", 0, UNIT_7),
    "two units changed places": Damage(two_units_changed_places, "unit-wrong unit-order", 0, UNIT_7),
}
INDEX_DAMAGES = {
    "index gone": Damage(lambda path: shutil.rmtree(path / "index"), "index-missing"),
    "oldest file gone": Damage(lambda path: index_file(path, 0).unlink(), "index-missing", 0),
    "middle file gone": Damage(lambda path: index_file(path, 1).unlink(), "index-missing", 1),
    "newest file gone": Damage(lambda path: index_file(path, 2).unlink(), "index-missing", 2),
    "newest file cut short": Damage(lambda path: cut(index_file(path, 2), 1000), "file-size index-missing", 2, 1000),
    "oldest file cut to nothing": Damage(lambda path: cut(index_file(path, 0), 0), "file-size index-missing", 0, 0),
    "oldest file random": Damage(
        lambda path: randomized(index_file(path, 0)), "index-header index-chain index-wrong", 0, 36
    ),
    "newest file random": Damage(
        lambda path: randomized(index_file(path, 2)), "index-header index-chain index-missing index-stray", 2, 36
    ),
    "newest file zeroed": Damage(lambda path: zeroed(index_file(path, 2)), "index-missing"),
    "every file zeroed": Damage(lambda path: [*map(zeroed, (path / "index").iterdir())], "index-missing"),
    "slots zeroed": Damage(
        lambda path: overwrite(index_file(path, 1), INDEX_HEADER_BYTES, bytes(2000)), "index-chain", 1
    ),
    "entries zeroed": Damage(
        lambda path: overwrite(index_file(path, 1), ENTRIES_AT + 200, bytes(400)),
        "index-wrong index-chain",
        1,
        ENTRIES_AT + 200,
    ),
    "header zeroed": Damage(lambda path: overwrite(index_file(path, -1), 0, bytes(40)), "index-missing"),
    "count too small": Damage(header(2, 36, ">i", 2), "index-header", 2, 36),
    "count too large": Damage(header(2, 36, ">i", SMALL.index_entries), "index-header", 2, 36),
    "count negative": Damage(header(0, 36, ">i", -5), "index-header", 0, 36),
    "count of another size": Damage(header(0, 36, ">i", 2**31 - 1), "index-header", 0, 36),
    "end offset beyond the log": Damage(header(2, 24, ">q", 1 << 50), "index-header", 2, 24),
    "begin offset wrong": Damage(header(1, 16, ">q", 1), "index-header", 1, 16),
    "begin time wrong": Damage(header(1, 0, ">q", 1), "index-header", 1, 0),
    "a slot of another chain": Damage(a_slot_of_another_chain, "index-chain", 0),
}
