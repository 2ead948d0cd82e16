"""Delayed delivery that ends at any moment: a power cut loses no message, a clean stop delivers none twice."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.delay_tools import START_MS, DelayedStore
from tests.fault.power_cut import AtRandom, PowerCut, PowerCutFiles, tiny
from tests.store_tools import UnsyncedFiles, kill

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "6"))
HOUR_MS = 3_600_000
AT_LAST_MS = START_MS + 100 * 24 * HOUR_MS


class Life:
    """Delayed messages that arrive at random and are delivered, until the store ends."""

    def __init__(self, delayed: DelayedStore, chance: random.Random) -> None:
        self.delayed = delayed
        self.sent: dict[bytes, int] = {}
        """End of each message's frame in the log."""
        self._chance = chance
        self._number = 0

    def act(self) -> None:
        """Do one random operation of a broker."""
        delayed, chance = self.delayed, self._chance
        actions: list[Callable[[], object]] = (
            [self._send] * 6
            + [delayed.step] * 6
            + [self._wait] * 3
            + [delayed.store.flush, self._dispatch, delayed.delays.persist, delayed.store.sync_derived, self._roll]
        )
        chance.choice(actions)()

    def _send(self) -> None:
        chance = self._chance
        bodies = [b"%06d" % (self._number + k) for k in range(chance.randint(1, 6))]
        self._number += len(bodies)
        common = chance.choice(
            [
                {"DELAY": 1},
                {"DELAY": chance.randint(1, 18)},
                {"TIMER_DELAY_SEC": chance.choice([1, 2, 30, 4_000, 90_000])},
            ]
        )
        self.delayed.send(chance.choice(["a", "b"]), bodies, queue=chance.randrange(2), **common)
        for body in bodies:
            self.sent[body] = self.delayed.store.write_offset

    def _wait(self) -> None:
        self.delayed.now_ms += self._chance.choice([100, 1_000, 10_000, HOUR_MS])

    def _dispatch(self) -> None:
        store = self.delayed.store
        while store.reput_offset < store.dispatchable_offset:
            store.dispatch(store.dispatchable_offset)

    def _roll(self) -> None:
        files = self.delayed.store.commitlog.queue.files
        if len(files) > 1:
            self.delayed.delays.roll_below(self._chance.choice(files[:-1]).end_offset)

    def delivered(self) -> Counter[bytes]:
        """Return how often each message was delivered, after all had time to."""
        self.delayed.run(AT_LAST_MS)
        return self.delayed.counted("a", 2) + self.delayed.counted("b", 2)


@pytest.mark.parametrize("policy", ["sync", "async"])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_message_in_the_log_is_delivered_after_a_power_cut(tmp_path: Path, seed: int, policy: str) -> None:
    chance = random.Random(f"{seed} {policy}")
    path = tmp_path / "store"
    path.mkdir()
    life = Life(DelayedStore(path, settings=tiny(policy), files=(files := PowerCutFiles(path, 1 << 60))), chance)
    sent: dict[bytes, int] = {}
    for number in range(3):
        files.lives = chance.randint(20, 1500)
        try:
            for _ in range(400):
                life.act()
        except PowerCut:
            pass
        flushed = life.delayed.store.flushed_offset
        sent.update(life.sent)
        kill(life.delayed.store)
        life.delayed.loop.close()
        target = tmp_path / f"cut-{number}"
        files.cut(target, AtRandom(chance))
        life.delayed.path = target
        files = PowerCutFiles(target, 1 << 60)
        life.delayed._files = files
        life.delayed.open()
        on_disk = {body for body, end_offset in life.sent.items() if end_offset <= flushed}
        sent = {body: end for body, end in sent.items() if body not in life.sent or body in on_disk}
        life.sent.clear()
    delivered = life.delivered()
    assert set(sent) <= set(delivered)
    life.delayed.stop()


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_clean_stops_lose_no_message_and_deliver_none_twice(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    life = Life(DelayedStore(tmp_path / "store", settings=tiny("sync"), files=UnsyncedFiles()), chance)
    for _ in range(4):
        for _ in range(120):
            life.act()
        life.delayed.restart()
    assert life.delivered() == Counter(life.sent.keys())
    life.delayed.stop()
