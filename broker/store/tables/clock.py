"""The store's clock: the time by which the store schedules, and the store times of its records.

The wall clock can be set, even by mistake, but store times must never decrease, or a search by time would miss records.
So the broker uses a clock of its own, ``SteadyClock``, and saves where that clock was moved.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import CorruptFile
from ..files.json_table import ConfigFile

if TYPE_CHECKING:
    from ..files.file_system import Files

log = logging.getLogger(__name__)

STEP_MS = 1_000
"""Maximum deviation of the wall clock from its expected time at which the store follows it immediately."""
HOLD_S = 60
"""Time for which a wall clock that jumped further must keep its new time before the store follows it (as in NTP)."""
PACE = 16
"""While records have later times than the clock, store time advances at 1/16 of the clock's speed."""
STEPS_MAX = 128
"""Maximum number of remembered steps: no delay level is longer than 128 times ``HOLD_S``."""
STEP_VALUE_MAX = 1 << 56
"""Maximum of the times and offsets in a step, so that computed values fit into 64 bits."""

_NS = 1_000_000_000
_NS_A_MS = 1_000_000
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that cannot be set and that, if the system has CLOCK_BOOTTIME, continues while the machine is suspended."""


def elapsed_ns() -> int:
    """Return nanoseconds since an arbitrary moment, independent of the wall clock."""
    return time.clock_gettime_ns(_ELAPSED)


class StoreClock:
    """The plain wall clock, for scripts that open a store."""

    def begin(self, last_store_ms: int, write_offset: int) -> None:
        """Prepare for a store that was opened and whose last record has this store time."""

    def now_ms(self) -> int:
        """Return the time in ms since 1970 UTC. Only for the appending thread."""
        return time.time_ns() // _NS_A_MS

    def seen_ms(self) -> int:
        """Return the same time; any thread may call this."""
        return self.now_ms()

    def store_ms(self, last_store_ms: int) -> int:
        """Return the next records' store time; ``last_store_ms``: that of the last one. Only for the appending
        thread."""
        return max(self.now_ms(), last_store_ms)

    @property
    def moved_ms(self) -> int:
        """Sum of all steps by which the clock was moved since the store was opened."""
        return 0

    def held_ms(self) -> int:
        """Return how far the wall clock is from this clock; 0 while this clock follows it."""
        return 0

    def stored_ms(self, physical_offsets: np.ndarray, store_ms: np.ndarray) -> np.ndarray:
        """Return the store times of records by the present clock: those of records before a step move with it."""
        return store_ms


class Step(NamedTuple):
    """A move of the clock by ``moved_ms``, to ``clock_ms``. Records from ``physical_offset`` on were stored after it;
    no record before has a later store time than ``store_ms``."""

    physical_offset: int
    store_ms: int
    clock_ms: int
    moved_ms: int

    @property
    def caught_up_ms(self) -> int:
        """Time of the clock from which on store time equals the clock again."""
        return self.clock_ms + max(self.store_ms - self.clock_ms, 0) * PACE // (PACE - 1) + 1


class SteadyClock(StoreClock):
    """A clock that follows a jump of the wall clock only after the wall clock has kept its new time for ``HOLD_S``.

    ``log_end``: function that returns the next record's physical offset and the last record's store time. The file
    ``path`` keeps the accepted steps.
    """

    def __init__(self, files: Files, path: Path, log_end: Callable[[], tuple[int, int]]) -> None:
        self._file = ConfigFile(files, path)
        self._path = path
        self._log_end = log_end
        self._steps: list[Step] = []
        self._moved_ms = 0
        self._caught_up_ms = 0
        self._base = (time.time_ns(), elapsed_ns())
        """Wall clock and elapsed time when the wall clock was last right."""
        self._last_ns = 0
        """The last returned time. Only a step makes returned times decrease."""
        self._below_ns = 0
        """A wall clock between ``_last_ns`` and this time is accepted without a check."""
        self._held: tuple[int, int] | None = None
        """Elapsed time at which the wall clock jumped, and how far; None while it is followed."""

    # Opening.

    def begin(self, last_store_ms: int, write_offset: int) -> None:
        """Load the store's steps. Raises OSError.

        The wall clock is accepted whatever it says, since there is nothing to compare it with; if it is before the last
        record's store time, that is a step.
        """
        try:
            steps = self._file.load(_read)
        except CorruptFile as error:
            log.warning("%s. Delayed messages may be late by as much as the clock was moved", error)
            steps = []
        # Steps beyond the log's end concern records that a crash took; new records there come after these steps too.
        self._steps = [step._replace(physical_offset=min(step.physical_offset, write_offset)) for step in steps]
        if self._steps != steps:
            self._save()
        wall = time.time_ns()
        self._base, self._last_ns = (wall, elapsed_ns()), wall
        now_ms = wall // _NS_A_MS
        last_ms = int(self.stored_ms(np.array([write_offset - 1]), np.array([last_store_ms]))[0])
        if last_store_ms and now_ms < last_ms - STEP_MS:
            log.warning(
                "the clock says %s and is %.1f s behind the newest message of the store: either it is wrong now, or it "
                "was ahead. The broker uses it; store times stay ahead of it until it has caught up",
                _utc(now_ms),
                (last_ms - now_ms) / 1000,
            )
            self._note(Step(write_offset, last_store_ms, now_ms, now_ms - last_ms + PACE))  # never too early
        elif self._steps:
            self._caught_up_ms = self._steps[-1].caught_up_ms

    # The time.

    def now_ms(self) -> int:
        """Return the time in ms since 1970 UTC. Only for the appending thread."""
        wall = time.time_ns()
        if self._last_ns <= wall < self._below_ns:
            self._last_ns = wall
            return wall // _NS_A_MS
        return self._look(wall) // _NS_A_MS

    def seen_ms(self) -> int:
        """Return the same time; any thread may call this."""
        wall, elapsed = self._base
        return (wall + elapsed_ns() - elapsed) // _NS_A_MS

    def held_ms(self) -> int:
        """Return how far the wall clock is from this clock; 0 while this clock follows it."""
        return self._held[1] // _NS_A_MS if self._held is not None else 0

    def store_ms(self, last_store_ms: int) -> int:
        """Return the next records' store time; ``last_store_ms``: that of the last one. Only for the appending
        thread."""
        wall = time.time_ns()
        if self._last_ns <= wall < self._below_ns:  # inlined ``now_ms``: every PRODUCE runs this
            self._last_ns = wall
            now_ms = wall // _NS_A_MS
        else:
            now_ms = self._look(wall) // _NS_A_MS
        if now_ms < self._caught_up_ms:
            step = self._steps[-1]
            return max(now_ms, last_store_ms, step.store_ms + (now_ms - step.clock_ms) // PACE)
        return now_ms if now_ms > last_store_ms else last_store_ms

    def _look(self, wall: int) -> int:
        elapsed = elapsed_ns()
        expected = self._base[0] + elapsed - self._base[1]
        off = wall - expected
        if abs(off) <= STEP_MS * _NS_A_MS:
            if self._held is not None:
                log.warning("the wall clock is right again; its jump had no effect")
                self._held = None
            if wall >= self._last_ns:
                self._base, self._last_ns = (wall, elapsed), wall
                self._below_ns = wall + STEP_MS * _NS_A_MS
            return self._last_ns  # the wall clock went back a little: time stands still until it catches up
        # No call may take the shortcut while the wall clock is off.
        self._below_ns = 0
        if self._held is None or abs(off - self._held[1]) > STEP_MS * _NS_A_MS:
            self._held = elapsed, off
            log.warning(
                "the wall clock jumped by %.1f s, to %s. The broker uses the new time after it has held for %d s",
                off / _NS,
                _utc(wall // _NS_A_MS),
                HOLD_S,
            )
        if elapsed - self._held[0] >= HOLD_S * _NS:
            self._follow(wall, elapsed, off)
        else:
            self._last_ns = max(self._last_ns, expected)
        return self._last_ns

    def _follow(self, wall: int, elapsed: int, off: int) -> None:
        log.warning("the clock of the store is moved by %.1f s and says %s", off / _NS, _utc(wall // _NS_A_MS))
        self._held = None
        self._base, self._last_ns = (wall, elapsed), wall
        self._note(Step(*self._log_end(), wall // _NS_A_MS, off // _NS_A_MS))

    # Steps.

    @property
    def moved_ms(self) -> int:
        """Sum of all steps by which the clock was moved since the store was opened."""
        return self._moved_ms

    def _note(self, step: Step) -> None:
        self._steps = [*self._steps, step][-STEPS_MAX:]
        self._moved_ms += step.moved_ms
        self._caught_up_ms = step.caught_up_ms
        self._save()

    def _save(self) -> None:
        try:
            self._file.save({"steps": [list(each) for each in self._steps]})
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            log.error(
                "no room to record in %s that the clock was moved: %s; it is recorded with the next step. If the "
                "broker ends before that, delayed messages may come late",
                self._path,
                error,
            )

    def stored_ms(self, physical_offsets: np.ndarray, store_ms: np.ndarray) -> np.ndarray:
        """Return the store times of records by the present clock.

        They are never too early, and up to ``PACE`` ms too late where store time was ahead of the clock.
        """
        stored = store_ms
        for step in self._steps:
            after = physical_offsets >= step.physical_offset
            if step.store_ms > step.clock_ms:
                paced = step.clock_ms + (store_ms - step.store_ms + 1) * PACE - 1
                by_clock = np.where(store_ms >= step.store_ms, np.minimum(store_ms, paced), store_ms)
            else:
                by_clock = store_ms
            stored = np.where(after, by_clock, stored + step.moved_ms)
        return stored


def _read(table: dict[str, Any]) -> list[Step]:
    steps = [Step(*map(int, row)) for row in table.get("steps", ())][-STEPS_MAX:]
    if any(abs(value) > STEP_VALUE_MAX for step in steps for value in step):
        raise ValueError("a step has an impossible time or offset")
    return steps


def _utc(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms // 1000))
