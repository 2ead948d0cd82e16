"""Staged transactions while the broker ends at any moment: each is stored as a whole, once, or not at all."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flintmq.protocol.errors import PreparedIncomplete, SystemBusy
from tests.fault.power_cut import AtRandom, PowerCut, PowerCutFiles, tiny
from tests.prepared_store import TIMEOUT_MS, PreparedStore
from tests.store_tools import UnsyncedFiles, kill, restore, save

ROUNDS = int(os.environ.get("FLINTMQ_KILL_ROUNDS", "4"))
TOPICS = ("a", "b")


@dataclass
class Transaction:
    """The messages of a transaction, by topic; ``acknowledged``: the client got the response to its commit."""

    series: str
    number: int
    bodies: set[tuple[str, bytes]] = field(default_factory=set)
    acknowledged: bool = False


class Life:
    """Attempts that prepare at random, and are committed or dropped, until something ends the store."""

    def __init__(self, made: PreparedStore, chance: random.Random) -> None:
        self.made = made
        self.transactions: list[Transaction] = []
        self._chance = chance
        self._number = 0
        self._attempts: dict[str, list[tuple[str, bytes]]] = {}

    def begin_again(self) -> None:
        """Continue after the store was opened again; no client continues the earlier attempts."""
        self._attempts.clear()

    def act(self) -> None:
        """Do one random operation of a broker."""
        made = self.made
        actions: list[Callable[[], object]] = (
            [self._prepare] * 8
            + [self._commit] * 2
            + [made.step] * 6
            + [made.dispatch] * 3
            + [self._abort, self._wait, made.store.flush, made.save, made.store.sync_derived]
        )
        self._chance.choice(actions)()

    def _prepare(self) -> None:
        chance, open_ones = self._chance, self.made.staged.table.stages
        self._attempts = {name: mine for name, mine in self._attempts.items() if name in open_ones}
        name = chance.choice([*self._attempts, f"attempt {self._number}"])
        topic, queue = chance.choice(TOPICS), chance.randrange(2)
        bodies = [b"%06d" % (self._number + k) + b"x" * chance.randrange(300) for k in range(chance.randint(1, 40))]
        self._number += len(bodies)
        self.made.prepare(name, topic, bodies, queue=queue)
        self._attempts.setdefault(name, []).extend((topic, body) for body in bodies)

    def _commit(self) -> None:
        known = {name: mine for name, mine in self._attempts.items() if name in self.made.staged.table.stages}
        chosen = self._chance.sample(sorted(known), self._chance.randint(0, min(len(known), 3)))
        transaction = Transaction(self._chance.choice(["one", "two"]), len(self.transactions))
        transaction.bodies.update(each for name in chosen for each in self._attempts.pop(name))
        self.transactions.append(transaction)
        try:
            begun = self.made.commit(
                transaction.number, {name: len(known[name]) for name in chosen}, scope=transaction.series
            )
        except SystemBusy:
            self.transactions.pop()
            return

        def on_end(error: Exception | None) -> None:
            transaction.acknowledged = error is None

        assert begun.pending is not None
        begun.pending.when_finished(on_end)

    def _abort(self) -> None:
        if self._attempts:
            name = self._chance.choice(sorted(self._attempts))
            self.made.staged.abort_stages(name)
            del self._attempts[name]

    def _wait(self) -> None:
        self.made.now_ms += self._chance.choice([1_000, 10_000, TIMEOUT_MS])

    def check(self, *, none_lost: bool) -> None:
        """Finish all commits, and check. ``none_lost``: all acknowledged transactions are on disk."""
        made = self.made
        made.run()
        found = [(topic, body) for topic in TOPICS for body in made.counted(topic, 2).elements()]
        assert len(set(found)) == len(found), "a message was copied twice"
        stored = set(found)
        for transaction in self.transactions:
            there = transaction.bodies <= stored
            assert there or not transaction.bodies & stored, "a part of a transaction"
            assert there or not (transaction.acknowledged and none_lost)
            stored -= transaction.bodies
            if transaction.bodies and there:
                assert made.commit(transaction.number, {}, scope=transaction.series).already
        assert not stored, "messages that no client committed"


@pytest.mark.parametrize("policy", ["sync", "async"])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_after_a_power_cut_each_transaction_is_complete_or_absent(tmp_path: Path, seed: int, policy: str) -> None:
    chance = random.Random(f"{seed} {policy}")
    path = tmp_path / "store"
    path.mkdir()
    files = PowerCutFiles(path, 1 << 60)
    life = Life(PreparedStore(path, settings=tiny(policy), files=files), chance)
    for number in range(3):
        files.lives = chance.randint(20, 2500)
        try:
            for _ in range(500):
                life.act()
        except PowerCut:
            pass
        kill(life.made.store)
        life.made.loop.close()
        target = tmp_path / f"cut-{number}"
        files.cut(target, AtRandom(chance))
        life.made.path = target
        files = PowerCutFiles(target, 1 << 60)
        life.made.open(files)
        life.begin_again()
        life.check(none_lost=policy == "sync")
        is_committed = life.made.staged.table.is_committed
        life.transactions = [each for each in life.transactions if is_committed(each.series, each.number)]
    life.made.stop()


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_kills_and_clean_stops_lose_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    life = Life(PreparedStore(tmp_path / "store", settings=tiny("sync"), files=UnsyncedFiles()), chance)
    for _ in range(6):
        for _ in range(chance.randint(1, 200)):
            life.act()
        if chance.randrange(2):
            life.made.restart()
        else:
            kill(life.made.store)
            life.made.loop.close()
            life.made.open()
        if chance.randrange(2):
            life.begin_again()
    for transaction in life.transactions:
        transaction.acknowledged = True  # a kill loses nothing that was written
    life.check(none_lost=True)
    life.made.stop()


def test_a_partly_written_attempt_is_not_committed_silently(tmp_path: Path) -> None:
    made = PreparedStore(tmp_path / "store", settings=tiny("async"))
    made.prepare("attempt", "a", [b"one"])
    made.store.flush()
    kept = made.store.write_offset
    before = save(tmp_path / "store")
    made.prepare("attempt", "a", [b"two", b"three"])
    end = made.store.write_offset
    (log,) = (tmp_path / "store" / "commitlog").iterdir()
    content = log.read_bytes()
    kill(made.store)
    made.loop.close()
    for cut in range(kept, end, 40):  # within the note, between it and its messages, within one of them
        restore(tmp_path / "store", before)
        log.write_bytes(content[:cut] + bytes(len(content) - cut))
        made.open()
        with pytest.raises(PreparedIncomplete, match="nothing was committed"):
            made.commit(0, {"attempt": 3})
        kill(made.store)
        made.loop.close()
