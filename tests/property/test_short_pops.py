"""Consumers of a work queue whose connections a kernel reads: a broker with them does the same as one without."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.broker.delivery.pop import table as journal
from flintmq.broker.handlers import pop as general_way
from flintmq.broker.kernels.addresses import AVAILABLE
from flintmq.broker.requests.short_pops import ShortPops
from flintmq.protocol.commands import (
    ACK_MESSAGE,
    CHANGE_MESSAGE_INVISIBLETIME,
    POP_MESSAGE,
    RECEIPT_STRUCT,
    UPDATE_AND_CREATE_TOPIC,
)
from flintmq.protocol.frames import REQUEST, ProduceHead, encode_frame
from flintmq.protocol.storage.record import decode_record
from tests.paired_brokers import Pair, pair_of, split_evenly
from tests.property.test_short_sends import CLIENTS, SocketSide

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the kernel needs Linux, and is not interpreted")

TOPIC = "orders"
PRODUCER = CLIENTS - 1
"""The client that sends messages; the others pop."""
GROUPS = ("workers", "others")
LEASE_MS = 1_000_000
"""Longer than the test, whose clock alone ends leases."""

Receipt = tuple[int, int, int, int]


class PopSide(SocketSide):
    """A broker whose pops follow the test's clock."""

    receipts: list[Receipt]
    """The receipts of the last messages."""

    async def start(self, *, short_way: bool) -> None:
        """Start the broker and open the connections."""
        await super().start(short_way=short_way)
        self.broker.pops.now_ms = self.clock.now_ms
        self.receipts = []

    def state(self) -> dict[str, Any]:
        """Return everything that both brokers must agree on."""
        broker = self.broker
        for connection in self.connections:
            connection.settle(0.0)
        latencies = broker.counters.latencies
        return super().state() | {
            # What waits for the disk is answered later than what was sent after it.
            "answers": sorted(self.answers(), key=lambda answer: answer[0]),
            "in flight": states(dict(broker.pops.table.states())),
            "journal": states(journal.replayed(broker.store.pop_journal.read())),
            "committed": broker.store.consumer_offsets.all_committed(),
            "pulled": self.pulled(),
            "latencies": [sum(latencies[command.code].counts) for command in (POP_MESSAGE, ACK_MESSAGE)],
            "connections": [(each.frames_in, each.bytes_in, each.responses.bytes_out) for each in self.connections],
        }


def states(found: dict[journal.QueueKey, journal.QueueInFlight]) -> dict[journal.QueueKey, Any]:
    """Return what the states of queues say, without those that say nothing but their committed offset."""
    return {
        key: (
            state.next_offset,
            state.settled(),
            {offset: (each.pop_ms, each.visible_ms) for offset, each in state.open.items()},
        )
        for key, state in found.items()
        if not state.is_idle
    }


class Always:
    """Choices that are not random, so that both brokers make the same."""

    random = staticmethod(lambda: 0.5)
    randrange = staticmethod(lambda count: 0)


@pytest.fixture
def pair() -> Iterator[Pair[PopSide]]:
    with pytest.MonkeyPatch.context() as patch, pair_of(PopSide, "async") as made:
        patch.setattr(general_way, "random", Always)
        patch.setattr(ShortPops, "enter_again_after", 0)
        yield made
        for side in (made.short, made.general):
            for connection, wire in zip(side.connections, side.wires, strict=True):
                connection.connection_lost(None)
                wire.ours.close()
                wire.client.close()


def pop(group: str, queue: int, count: int, request_id: int, **others: Any) -> bytes:
    fields = {"group": group, "topic": TOPIC, "queue": queue, "max_count": count, "lease_ms": LEASE_MS, **others}
    return encode_frame(REQUEST, POP_MESSAGE.code, request_id, fields | {"start": "first"})


def of_receipts(command: int, group: str, receipts: list[Receipt], request_id: int, **others: Any) -> bytes:
    body = b"".join(RECEIPT_STRUCT.pack(*each) for each in receipts)
    return encode_frame(
        REQUEST, command, request_id, {"group": group, "topic": TOPIC, "count": len(receipts), **others}, body
    )


def produce(pair: Pair[PopSide], queue: int, sizes: list[int]) -> bytes:
    pair.next_id += 1
    body = b"".join(msgpack.packb([b"x" * size, {}]) for size in sizes)
    head = ProduceHead(TOPIC, queue, 0, "", "", "")
    return head.encode(pair.next_id, len(sizes), 0, 0, len(body)) + body


def feed(pair: Pair[PopSide], client: int, frames: list[bytes], pieces: int = 1) -> None:
    """Send the frames to both brokers, compare what they make of them, and note the receipts in the answers."""
    if not frames:
        return
    stream, requests = b"".join(frames), len(frames)
    frames.clear()
    for side in (pair.short, pair.general):
        side.use(client)
        pair.runner.run(side.feed(split_evenly(stream, pieces), requests))
        for _, code, fields, body in side.answers():
            if not code and "pop_ms" in fields:
                side.receipts += receipts_in(fields, body)
    pair.check_equal()


def expire(pair: Pair[PopSide]) -> None:
    """Let all leases end."""
    for side in (pair.short, pair.general):
        side.clock.at_ms += 2 * LEASE_MS
        while pair.runner.run(side.broker.pops.step(side.clock.at_ms)):
            pass
    pair.check_equal()


def receipts_in(fields: dict[str, Any], body: bytes) -> Iterator[Receipt]:
    count = fields["count"]
    at = 4 * count
    for number, (size,) in enumerate(struct.iter_unpack(">I", body[:at])):
        record = decode_record(body[at : at + size])
        retry = number >= count - fields.get("retried", 0)
        yield int(retry), record.queue_id, record.queue_offset, fields["pop_ms"]
        at += size


queues, groups = st.integers(0, 1), st.sampled_from(GROUPS)
choices = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0] * 15 + [1])), min_size=1, max_size=4)
pops = st.tuples(
    st.just("pop"),
    groups,
    queues,
    st.sampled_from([1, 1, 1, 2, 5, 32]),
    st.sampled_from([{}] * 6 + [{"max_bytes": 300}, {"tags": "*"}, {"tags": "red"}, {"unknown": [1]}]),
)
acks = st.tuples(st.just("ack"), groups, choices)
rare = st.one_of(
    st.tuples(st.just("renew"), groups, choices),
    st.tuples(st.just("back"), groups, choices),
    st.tuples(st.just("produce"), queues, st.lists(st.sampled_from([0, 50, 2_000]), min_size=1, max_size=3)),
    st.tuples(st.just("expire")),
    st.tuples(st.just("hide")),
)
frames = st.lists(st.one_of(*[pops] * 10, *[acks] * 10, rare), min_size=1, max_size=4)
steps = st.lists(
    st.tuples(st.integers(0, PRODUCER - 1), frames, st.sampled_from([1] * 8 + [2, 4])), min_size=2, max_size=12
)


@given(steps=steps, repeats=st.integers(2, 4))
@settings(
    max_examples=25,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_pops_that_the_kernel_reads_are_decided_and_answered_as_others(
    pair: Pair[PopSide], steps: list[Any], repeats: int
) -> None:
    entered = 0
    for client, kinds, pieces in steps * repeats:
        feed(pair, PRODUCER, [produce(pair, 0, [20, 3_000]), produce(pair, 1, [20])])
        stream: list[bytes] = []
        for kind, *what in kinds:
            if kind == "expire":
                feed(pair, client, stream, pieces)
                expire(pair)
            elif kind == "produce":
                feed(pair, PRODUCER, [produce(pair, *what)])
            elif kind == "back":
                # Alone: messages that are given back are appended later, perhaps after what was sent behind them.
                feed(pair, client, stream, pieces)
                feed(pair, client, [frame_of(pair, kind, *what)])
            elif kind == "hide":
                stream += [permit(pair, 2), frame_of(pair, "pop", GROUPS[0], 0, 1, {}), permit(pair, 6)]
            else:
                stream.append(frame_of(pair, kind, *what))
        entered += not pair.short.connections[client].reading
        feed(pair, client, stream, pieces)
        for side in (pair.short, pair.general):
            side.clock.at_ms += 1
    event(f"reads by the kernel: {min(entered, 8)}")
    for side in (pair.short, pair.general):
        del side.receipts[:-40]


def frame_of(pair: Pair[PopSide], kind: str, *what: Any) -> bytes:
    """Return a frame with the next request id."""
    pair.next_id += 1
    if kind == "pop":
        group, queue, count, others = what
        return pop(group, queue, count, pair.next_id, **others)
    group, chosen = what
    known = pair.general.receipts[-41:] or [(0, 0, 0, 1)]
    receipts = [known[-1 - number % len(known)] for number, _ in chosen]
    receipts = [(*each[:3], each[3] + wrong) for each, (_, wrong) in zip(receipts, chosen, strict=True)]
    if kind == "ack":
        return of_receipts(ACK_MESSAGE.code, group, receipts, pair.next_id)
    lease_ms = LEASE_MS if kind == "renew" else 0
    return of_receipts(CHANGE_MESSAGE_INVISIBLETIME.code, group, receipts, pair.next_id, lease_ms=lease_ms)


def permit(pair: Pair[PopSide], perm: int) -> bytes:
    """Return the request that changes the topic's permissions."""
    pair.next_id += 1
    fields = {"topic": TOPIC, "read_queues": 2, "write_queues": 2, "perm": perm}
    return encode_frame(REQUEST, UPDATE_AND_CREATE_TOPIC.code, pair.next_id, fields)


def test_pops_of_one_turn_share_out_each_message_once(pair: Pair[PopSide]) -> None:
    side = pair.short
    group = "sharing"
    expected = 0
    for _ in range(3):
        feed(pair, PRODUCER, [produce(pair, 0, [10] * 20)])
    for client in range(PRODUCER):
        for _ in range(4):
            feed(pair, client, [pop(group, 0, 1, 1, max_bytes=1_000)])
        assert not side.connections[client].reading, "the kernel reads it"
        side.wires[client].sent.clear()
    got: list[int] = []
    for count in (1, 5, 32):
        for client in range(PRODUCER):
            side.wires[client].client.sendall(pop(group, 0, count, 2, max_bytes=1_000))
        for client in range(PRODUCER):
            side.use(client)
            pair.runner.run(side.feed([], 1))
            assert not side.connections[client].reading
            ((_, code, fields, body),) = side.answers()
            assert code == 0
            taken = [receipt[2] for receipt in receipts_in(fields, body)]
            assert taken == list(range(taken[0], taken[0] + len(taken)))
            assert len(taken) == count or (count > 5 and len(body) - 4 * len(taken) <= 1_000)
            got += taken
            expected += len(taken)
            side.wires[client].sent.clear()
    assert len(set(got)) == len(got) == expected
    assert side.broker.pops.table.in_flight_in(journal.QueueKey(group, TOPIC, 0)) == expected + 4 * PRODUCER


def test_a_pop_that_waits_leaves_the_short_way_and_gets_its_message(pair: Pair[PopSide]) -> None:
    side, group = pair.short, "waiting"
    feed(pair, PRODUCER, [produce(pair, 1, [10])])
    side.use(0)
    assert [pair.runner.run(popped(side, group)) for _ in range(5)] == [1, 0, 0, 0, 0]
    assert not side.connections[0].reading, "the kernel reads it"
    side.wires[0].client.sendall(pop(group, 1, 1, 3, wait_ms=600_000))
    pair.runner.run(side._until(lambda: side._pump() and side.connections[0].reading))
    assert side.broker.pops.waits.count(group, TOPIC) == 1
    side.use(PRODUCER)
    pair.runner.run(side.feed([produce(pair, 1, [10])], 1))
    side.use(0)
    pair.runner.run(side.feed([], 1))
    assert side.answers()[0][2]["count"] == 1
    for wire in side.wires:
        wire.sent.clear()


async def popped(side: PopSide, group: str) -> int:
    """Pop from a queue; return the number of messages."""
    await side.feed([pop(group, 1, 32, 2)], 1)
    count: int = side.answers()[0][2]["count"]
    side.wire.sent.clear()
    return count
