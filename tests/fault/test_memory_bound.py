"""However much clients send at a time, the broker's own memory stays within its bound, and it keeps serving."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from string import ascii_letters
from typing import TypeAlias

import msgpack
import pytest

from flintmq.protocol.commands import (
    COMMIT_PREPARED,
    CONSUMER_OFFSET_STRUCT,
    HEART_BEAT,
    POP_MESSAGE,
    PRODUCE,
    PULL,
    UPDATE_CONSUMER_OFFSET,
    Command,
)
from flintmq.protocol.errors import SUCCESS, InvalidParameter, LimitReached, MessageIllegal, SystemBusy
from flintmq.protocol.remoting import codes
from tests.conftest import Answer, RawConnection, RunningBroker
from tests.fault.test_stalled_disk import HANGING_DISK, HOUR_MS
from tests.overload_tools import anonymous_bytes, soon
from tests.pop_tools import ask
from tests.remoting_tools import RemotingBroker
from tests.tls_tools import Authority

Factory: TypeAlias = Callable[..., RunningBroker]
Connect: TypeAlias = Callable[..., RawConnection]

MIB = 1024 * 1024
BOUND_BYTES = 512 * MIB
"""The bound that broker/net/README.md promises for the default limits."""
ROOT = Path(__file__).parents[2]


class Peak:
    """Peak of a process's own memory while this context was entered."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._note()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self._note()

    def _note(self) -> None:
        self.bytes = max(self.bytes, anonymous_bytes(self._pid))


@contextmanager
def flood(
    running: RunningBroker, *, connections: int, bytes_each: int, frame_bytes: int, body_bytes: int
) -> Iterator[str]:
    """Producers that read no response, after they have sent everything; see ``tests.flood``."""
    arguments = map(str, (running.port, connections, bytes_each, frame_bytes, body_bytes))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.flood", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
    finally:
        process.stdin.close()
        assert process.wait(60) == 0
        process.stdout.close()


def test_a_thousand_producers_that_read_no_response_stay_within_the_bound_while_the_disk_hangs(
    broker: Factory, connect: Connect, tmp_path: Path
) -> None:
    """The producers send 4 GiB in large frames, half of which are never completed."""
    switch = tmp_path / "flushes hang"
    # Only the limits hold them back: the broker never notices that the disk hangs.
    settings = {"flush.stall_ms": HOUR_MS, "flush.sync_timeout_ms": HOUR_MS}
    running = broker("--flush", "sync", settings=settings, program=["-c", HANGING_DISK, str(switch)])
    witness = connect(running)
    witness.produce("flood", b"before", queue=0).raise_for_error()
    switch.touch()
    try:
        with (
            Peak(running.process.pid) as peak,
            flood(
                running, connections=1000, bytes_each=4 * MIB + 100_000, frame_bytes=2_200_000, body_bytes=10_000
            ) as said,
        ):
            assert said.startswith("sent "), "it came through"
            assert witness.pull("flood").fields["count"] == 1, "a client that reads is served"
    finally:
        switch.unlink()
    assert peak.bytes < BOUND_BYTES
    soon(lambda: witness.produce("flood", b"after", queue=0).code == 0)


@pytest.mark.parametrize(
    ("selection", "encrypted"),
    [({}, False), ({"filter": "colour IS NULL"}, False), ({}, True)],
    ids=["everything", "what a filter finds", "over TLS"],
)
def test_readers_that_take_no_response_stay_within_the_bound(
    broker: Factory, connect: Connect, tmp_path: Path, selection: dict[str, str], encrypted: bool
) -> None:
    authority = Authority(tmp_path)
    running = broker("--flush", "async", settings=authority.issue().broker_settings if encrypted else {})
    running.tls = ssl.create_default_context(cafile=authority.path) if encrypted else None
    witness = connect(running)
    for _ in range(64):
        witness.produce("orders", bytes(500_000), queue=0).raise_for_error()
    large = {"topic": "orders", "queue": 0, "offset": 0, "max_bytes": 16 * MIB, "max_count": 100}
    with Peak(running.process.pid) as peak:
        readers = [connect(running) for _ in range(100)]
        for reader in readers:
            for _ in range(3):
                reader.send(PULL, large | selection)
        for _ in range(20):
            assert witness.pull("orders", max_bytes=100).fields["count"] == 1, "a client that reads is served"
        late = connect(running)
        assert late.pull("orders", max_bytes=16 * MIB, max_count=100).fields["count"] >= 1, "if only in small parts"
    assert peak.bytes < BOUND_BYTES


def test_a_message_for_many_held_pulls_stays_within_the_bound(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "async")
    witness = connect(running)
    witness.produce("orders", b"first", queue=0).raise_for_error()
    waiting = [connect(running) for _ in range(1_200)]
    for reader in waiting:
        reader.send(PULL, {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 600_000})
    with Peak(running.process.pid) as peak:
        witness.produce("orders", bytes(500_000), queue=0).raise_for_error()
        for reader in waiting:
            assert len(reader.receive().raise_for_error().body) > 500_000
    assert peak.bytes < BOUND_BYTES


EMPTY_MAP, EMPTY_ARRAY = b"\x80", b"\x90"


def array(count: int, item: bytes) -> bytes:
    """Return a msgpack array of ``count`` equal items."""
    return b"\xdd" + count.to_bytes(4, "big") + item * count


@pytest.mark.parametrize(
    ("command", "fields", "body"),
    [
        (COMMIT_PREPARED, {"series": "s", "number": 1, "count": 10_000}, array(16_000_000, EMPTY_MAP)),
        (COMMIT_PREPARED, {"series": "s", "number": 1, "count": 240}, array(240, array(65_000, EMPTY_ARRAY))),
        (HEART_BEAT, {"group": "g", "member": "m"}, b"\x92" + array(240, array(65_000, EMPTY_ARRAY)) + EMPTY_ARRAY),
        (HEART_BEAT, {"group": "g", "member": "m"}, b"\x92" + EMPTY_ARRAY + array(240, array(65_000, EMPTY_MAP))),
    ],
    ids=["attempts", "an attempt's row", "subscriptions", "queues"],
)
def test_a_body_of_sixteen_million_items_is_refused_at_its_first_invalid_one(
    shared_broker: RunningBroker, connect: Connect, command: Command, fields: dict[str, object], body: bytes
) -> None:
    peer = connect(shared_broker)
    before = anonymous_bytes(shared_broker.process.pid)
    with Peak(shared_broker.process.pid) as peak:
        answer = peer.call(command, fields, body)
    assert answer.code == InvalidParameter.code
    assert "the body is not" in answer.fields["message"]
    assert peak.bytes - before < 100 * MIB, "the frame twice: once while it grows, once complete"


TWO = [a + b for a in ascii_letters for b in ascii_letters]


def many_tags(number: int, chars: int) -> str:
    """Return a set of tags that differs for each number."""
    return "||".join([f"tag{number}", *TWO[: chars // 4 - 3]])


def properties(number: int, chars: int) -> str:
    """Return common properties of delayed messages, different for each number; a character takes four bytes."""
    return f"DELAY\x011\x02note\x01{number}\N{WAVE DASH}\N{GRINNING FACE}{'x' * chars}\x02"


def test_long_texts_that_clients_sent_are_not_cached(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "async")
    peer = connect(running)

    def ask(first: int, count: int, chars: int) -> int:
        for number in range(first, first + count):
            peer.produce("orders", b"x", queue=0, common=properties(number, chars)).raise_for_error()
            peer.pull("orders", 0, 0, tags=many_tags(number, min(chars, 4_000))).raise_for_error()
        return anonymous_bytes(running.process.pid)

    peer.produce("orders", b"x", queue=0).raise_for_error()
    before = ask(0, 10, 30_000)
    assert ask(10, 300, 30_000) - before < 16 * MIB, "with a cache it would be 90"


def test_held_pulls_take_the_documented_memory_with_tags_and_fields_of_any_length(
    broker: Factory, connect: Connect
) -> None:
    running = broker("--flush", "async")
    witness = connect(running)
    witness.produce("orders", b"x", queue=0).raise_for_error()
    waits = {"topic": "orders", "queue": 0, "offset": 1, "wait_ms": 600_000}
    before = anonymous_bytes(running.process.pid)
    greedy = [connect(running) for _ in range(3)]
    for number in range(1_000):
        greedy[0].send(PULL, {**waits, "tags": many_tags(number, 4_000)})
        greedy[1].send(PULL, {**waits, "unknown": f"{number}{'x' * 60_000}"})
        greedy[2].send(PULL, {**waits, "filter": f"{'a=b OR ' * 250}c={number}"})
    codes = {greedy[0].receive().code, greedy[2].receive().code}
    assert codes == {SystemBusy.code}, "one connection's tags and filters count as held pulls"
    soon(lambda: held_pulls(witness) >= 1_000)
    assert anonymous_bytes(running.process.pid) - before < 48 * MIB
    witness.produce("orders", b"y", queue=0).raise_for_error()
    assert greedy[1].receive().raise_for_error().fields["count"] == 1


def test_waiting_pops_do_not_keep_their_filters(broker: Factory, connect: Connect) -> None:
    gateway = RemotingBroker(broker)
    native = connect(gateway.running)
    native.produce("orders", b"x", queue=0).raise_for_error()
    condition = f"a = '{chr(0x1F600) * 4_000}'"  # 16 KB in memory
    before = anonymous_bytes(gateway.running.process.pid)
    pops = {"group": "bills", "topic": "orders", "queue": -1, "max_count": 1, "lease_ms": 1000, "wait_ms": 600_000}
    with gateway.connect() as remote, gateway.connect() as witness:
        names = {"consumerGroup": "bills", "topic": "orders"}

        def is_waiting(count: str) -> bool:
            return str(witness.call(codes.POLLING_INFO, names).fields["pollingNum"]) == count

        for waiting in range(2, 4_001, 2):
            native.send(POP_MESSAGE, {**pops, "filter": condition})
            ask(remote, "orders", "bills", pollTime=300_000, expType="SQL92", exp=condition)
            if waiting % 200 == 0:  # so that frames which are not read yet take little
                soon(partial(is_waiting, str(waiting)))
        # 3.2 KiB each, and what the frames took while they were read; with the filters 64 MiB more.
        assert anonymous_bytes(gateway.running.process.pid) - before < 40 * MIB


def held_pulls(peer: RawConnection) -> int:
    return int(peer.runtime_info()["held_pulls"])


def test_open_transactions_take_the_documented_memory_with_keys_of_any_length(
    broker: Factory, connect: Connect
) -> None:
    running = broker("--flush", "async", settings={"transactions.timeout_ms": HOUR_MS})
    peer = connect(running)

    def open_some(first: int, count: int, chars: int) -> Answer:
        rows = b"".join(
            msgpack.packb([b"x", {"UNIQ_KEY": f"{number:010d}".rjust(chars, "k")}])
            for number in range(first, first + count)
        )
        half = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
        return peer.call(PRODUCE, {"topic": "orders", "queue": 0, "count": count, "common": half}, rows)

    open_some(0, 1, 32).raise_for_error()
    before = anonymous_bytes(running.process.pid)
    refused = open_some(1, 1, 256)
    assert refused.code == MessageIllegal.code
    assert "takes at most 255" in refused.fields["message"]
    for first in range(1, 10_001, 500):
        assert open_some(first, 20, 15_500).code == MessageIllegal.code
        open_some(first, 500, 255).raise_for_error()
    assert anonymous_bytes(running.process.pid) - before < 24 * MIB, "with keys of 15,500 characters it would be 160"


def test_groups_and_offsets_with_new_names_take_the_documented_memory(broker: Factory, connect: Connect) -> None:
    running = broker("--flush", "async", settings={"background.services:CHECKPOINT_S": 0.1})
    peer = connect(running)
    peer.produce("orders", b"x", queue=0).raise_for_error()
    before = anonymous_bytes(running.process.pid)
    codes = set()
    for first in range(0, 20_000, 1_000):
        for number in range(first, first + 1_000):
            fields = {"group": f"{number:0120d}", "topic": "orders", "count": 1}
            peer.send(UPDATE_CONSUMER_OFFSET, fields, CONSUMER_OFFSET_STRUCT.pack(0, 1))
        codes |= {peer.receive().code for _ in range(1_000)}
    assert codes == {SUCCESS, LimitReached.code}
    # Both tables are written after changes; the memory for that is freed afterwards.
    assert anonymous_bytes(running.process.pid) - before < 10_000 * 3 * 1024 + 96 * MIB
