"""Damage of a ConsumeQueue: its files are rebuilt as they were."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from flintmq.protocol.storage.layout import PRE_BLANK_SIZE, UNIT
from tests.fault.derived_files import (
    QUEUE,
    Damage,
    End,
    Filled,
    a_queue_gone,
    all_queues_gone,
    assert_rebuilt,
    both_ends,
    close,
)
from tests.store_tools import SMALL, kill, overwrite

FIRST, SECOND = f"{0:020d}", f"{SMALL.consumequeue_file_bytes:020d}"
SOURCE = random.Random(5)


def a_topic_gone(path: Path) -> None:
    shutil.rmtree(path / "consumequeue" / "orders")


def last_queue_file(path: Path) -> Path:
    return sorted((path / QUEUE).iterdir())[-1]


def first_file_gone(path: Path) -> None:
    (path / QUEUE / FIRST).unlink()


def second_file_gone(path: Path) -> None:
    (path / QUEUE / SECOND).unlink()


def last_file_gone(path: Path) -> None:
    last_queue_file(path).unlink()


def only_the_last_file_left(path: Path) -> None:
    for file in sorted((path / QUEUE).iterdir())[:-1]:
        file.unlink()


def file_cut_short(path: Path) -> None:
    with (path / QUEUE / SECOND).open("r+b") as file:
        file.truncate(333)


def last_file_cut_to_nothing(path: Path) -> None:
    last_queue_file(path).write_bytes(b"")


def file_too_long(path: Path) -> None:
    with (path / QUEUE / FIRST).open("ab") as file:
        file.write(b"x")


def file_zeroed(path: Path) -> None:
    (path / QUEUE / SECOND).write_bytes(bytes(SMALL.consumequeue_file_bytes))


def last_file_zeroed(path: Path) -> None:
    last_queue_file(path).write_bytes(bytes(SMALL.consumequeue_file_bytes))


def queue_zeroed(path: Path) -> None:
    for file in (path / QUEUE).iterdir():
        file.write_bytes(bytes(SMALL.consumequeue_file_bytes))


def file_of_random_bytes(path: Path) -> None:
    (path / QUEUE / SECOND).write_bytes(SOURCE.randbytes(SMALL.consumequeue_file_bytes))


def every_file_random(path: Path) -> None:
    for file in (path / "consumequeue").rglob("0*"):
        if file.is_file():
            file.write_bytes(SOURCE.randbytes(SMALL.consumequeue_file_bytes))


def files_of_another_queue(path: Path) -> None:
    """As if two folders had been mixed up."""
    shutil.rmtree(path / QUEUE)
    shutil.copytree(path / "consumequeue" / "orders" / "3", path / QUEUE)


def a_unit_of_ones(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, b"\xff" * 20)


def a_unit_beyond_the_log(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, UNIT.pack(1 << 60, 200, 0))


def a_unit_gone(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, bytes(20))


def a_unit_that_fills(path: Path) -> None:
    overwrite(path / QUEUE / FIRST, 7 * 20, UNIT.pack(0, PRE_BLANK_SIZE, 0))


def two_units_changed_places(path: Path) -> None:
    held = (path / QUEUE / FIRST).read_bytes()
    overwrite(path / QUEUE / FIRST, 140, held[160:180] + held[140:160])


@both_ends
@pytest.mark.parametrize(
    "damage",
    [
        all_queues_gone,
        a_topic_gone,
        a_queue_gone,
        first_file_gone,
        second_file_gone,
        last_file_gone,
        only_the_last_file_left,
        file_cut_short,
        last_file_cut_to_nothing,
        file_too_long,
        file_zeroed,
        last_file_zeroed,
        queue_zeroed,
        file_of_random_bytes,
        every_file_random,
        files_of_another_queue,
        a_unit_of_ones,
        a_unit_beyond_the_log,
        a_unit_gone,
        a_unit_that_fills,
        two_units_changed_places,
    ],
)
def test_a_damaged_consumequeue_is_rebuilt(filled: Filled, tmp_path: Path, end: End, damage: Damage) -> None:
    # Killed before anything was synced, recovery fills all queues again: there is no damage to report.
    assert_rebuilt(filled(end), tmp_path, damage, reported=end is not kill)


@pytest.mark.parametrize("byte", range(20))
def test_a_flipped_bit_anywhere_in_a_unit_is_noticed(filled: Filled, tmp_path: Path, byte: int) -> None:
    def flip(path: Path) -> None:
        at = SOURCE.randrange(50) * 20 + byte
        held = (path / QUEUE / FIRST).read_bytes()[at]
        overwrite(path / QUEUE / FIRST, at, bytes([held ^ 1 << SOURCE.randrange(8)]))

    assert_rebuilt(filled(close), tmp_path, flip)
