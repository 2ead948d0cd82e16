"""The short way of RocketMQ's repeated sends: a broker that takes it does the same as one that never does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from flintmq.broker.config import Settings
from flintmq.broker.net.connection import ClientConnection
from flintmq.broker.remoting.connection import RemotingConnection
from flintmq.broker.store import TopicConfig
from flintmq.protocol.errors import BrokerError
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import LENGTHS, send_pattern
from tests import paired_brokers
from tests.paired_brokers import Pair, Side, pair_of, split_evenly

TOPICS = ("orders", "payments", "%RETRY%payers")
PREFIXES = ("AB" * 10, "CD" * 10, "EF" * 22)
LONG_NAMES = (
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
    "reconsumeTimes unitMode batch"
).split()
SHORT_NAMES = "a b c d e f g h i j k m".split()


class SendSide(Side):
    """A broker whose client speaks RocketMQ's protocol."""

    connection: RemotingConnection

    def settings(self, folder: Path, policy: str) -> Settings:
        """Return the broker's settings."""
        remoting = {"listen": "127.0.0.1:0", "advertise": "127.0.0.1:10912"}
        more = {"remoting": remoting, "transactions": {"timeout_ms": 3_600_000}}  # no check of a half message meanwhile
        return Settings.model_validate({**paired_brokers.settings(folder, policy), **more})

    def make_connection(self) -> ClientConnection:
        """Return a new connection to the broker."""
        gateway = self.lifecycle._gateway
        assert gateway is not None
        gateway.unique_keys.prefix = "EF" * 10  # else random
        return RemotingConnection(self.broker, ("127.0.0.1", 4000), lambda connection: None, gateway)

    async def prepare(self) -> None:
        """Create the topics."""
        self.broker.groups.ensure_group("payers")
        for topic in TOPICS:
            await self.change(topic, "two queues")

    async def change(self, topic: str, change: str) -> None:
        """Change a topic, delete it, or open another connection."""
        told = self.broker.loop.create_future()

        def done(error: BrokerError | None) -> None:
            assert error is None
            told.set_result(None)

        if change == "reconnect":
            self.connection.connection_lost(None)
            self.connect()
            return
        if change == "delete":
            self.broker.topic_changes.delete(topic, done)
        else:
            queues, perm = 1 if change == "one queue" else 2, 4 if change == "read only" else 6
            self.broker.topic_changes.put(TopicConfig(topic, read_queues=queues, write_queues=queues, perm=perm), done)
        await told

    async def feed(self, chunks: list[bytes], requests: int) -> None:
        """Let the bytes arrive, and wait for all responses, and until one-way sends are stored and flushed."""
        await super().feed(chunks, requests)
        connection, broker = self.connection, self.broker
        await self._until(
            lambda: (
                not (connection.stops or connection.arrived or broker.in_flight.bytes or broker.topic_changes.pending)
            )
        )

    def answers(self) -> list[bytes]:
        """Return the frames that the broker sent, sorted: an error need not wait for the disk as other answers do, so
        their order depends on when the disk is done."""
        sent, at, frames = bytes(self.wire.sent), 0, []
        while at + 4 <= len(sent) and (end := at + 4 + int.from_bytes(sent[at : at + 4], "big")) <= len(sent):
            frames.append(sent[at:end])
            at = end
        return sorted(frames)


@pytest.fixture(scope="module", params=["async", "sync"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair[SendSide]]:
    with pair_of(SendSide, request.param) as made:
        yield made


values = st.sampled_from([*["red", "two words", "0", "18", "true"] * 5, "}", '"', "\\", "ü", ""])
"""Values of a property; an empty one is left out by the broker."""
names = st.sampled_from(["KEYS", "TAGS", "WAIT", "colour", "größe"])
rare = st.sampled_from(
    [()] * 15 + 3 * [("DELAY",)] + [("CLUSTER",), ("TRAN_MSG",), ("TIMER_DELIVER_MS",), ("KEYS", "KEYS")]
)


@st.composite
def styles(draw: st.DrawFn) -> dict[str, Any]:
    """Return what all headers of a client have in common; most can be kept."""
    return {
        "code": draw(st.sampled_from([codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_MESSAGE_V2])),
        "topic": draw(st.sampled_from([*TOPICS[:2] * 8, TOPICS[2], "unknown"])),
        "names": [*draw(st.lists(names, max_size=2, unique=True)), "UNIQ_KEY", *draw(rare)],
        "ends": draw(st.booleans()),
        "ascii": draw(st.booleans()),
        "separators": draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")])),
        "flag": draw(st.sampled_from([0] * 7 + [2])),
        "last": draw(st.sampled_from(["extFields", "opaque"])),
        "n": draw(st.sampled_from(["broker-a"] * 10 + ["a\\b", "{}"])),
    }


sends = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(["0", "0", "0", "1", "1", "7", "-1", "01"]),
        "born": st.sampled_from(["1600000000000", "0", "-5", "9" * 18]),
        "values": st.lists(values, min_size=6, max_size=6),
        "prefix": st.sampled_from(PREFIXES),
        "number": st.integers(0, 40),
        "body": st.binary(max_size=40),
    }
)
changes = st.tuples(
    st.sampled_from(TOPICS[:2]), st.sampled_from(["delete", "read only", "two queues", "one queue", "reconnect"])
)
steps = st.lists(
    st.tuples(st.integers(0, 2), st.lists(sends, min_size=1, max_size=4), st.integers(1, 6), st.none() | changes),
    min_size=1,
    max_size=8,
)


def frame(style: dict[str, Any], send: dict[str, Any], opaque: int) -> bytes:
    """Return one send of a client."""
    given = iter(send["values"])
    key = f"{send['prefix']}{send['number']:012X}"
    pairs = [f"{name}\x01{key if name == 'UNIQ_KEY' else next(given)}" for name in style["names"]]
    properties = "\x02".join(pairs) + ("\x02" if style["ends"] else "")
    ext_names = LONG_NAMES if style["code"] == codes.SEND_MESSAGE else SHORT_NAMES
    ext_values = ("group", style["topic"], "TBW102", "4", send["queue"], "0", send["born"], "0", properties)
    ext = dict(zip(ext_names, (*ext_values, "0", "false", "false"), strict=True)) | {"n": style["n"]}
    members = {"code": style["code"], "flag": style["flag"], "language": "JAVA", "version": 479}
    last = {"extFields": ext, "opaque": opaque}
    members |= {name: last[name] for name in sorted(last, key=lambda name: name == style["last"])}
    header = json.dumps(members, ensure_ascii=style["ascii"], separators=style["separators"]).encode()
    body: bytes = send["body"]
    return LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


@given(
    clients=st.lists(styles(), min_size=3, max_size=3),
    steps=steps,
    repeats=st.integers(1, 3),
    advance_ms=st.integers(0, 3),
)
@settings(
    max_examples=30,
    deadline=None,
    # The brokers live on: an example that fails cannot be repeated, and so not shrunk either.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_both_ways_store_answer_and_count_the_same(
    pair: Pair[SendSide], clients: list[Any], steps: list[Any], repeats: int, advance_ms: int
) -> None:
    sides = (pair.short, pair.general)
    for side in sides:  # a connection keeps few headers
        pair.runner.run(side.change("", "reconnect"))
    for client, sent, pieces, change in steps * repeats:
        style, stream = clients[client], b""
        for send in sent:
            pair.next_id += 1
            stream += frame(style, send, pair.next_id)
        chunks = split_evenly(stream, pieces)
        answered = 0 if style["flag"] else len(sent)
        for side in sides:
            side.clock.at_ms += advance_ms
            pair.runner.run(side.feed(chunks, answered))
            if change is not None:
                topic, what = change
                if what != "delete" or side.broker.store.topics.get(topic) is not None:
                    pair.runner.run(side.change(topic, what))
        pair.check_equal()
    assert not pair.general.connection.repeated.headers
    event(f"kept headers: {min(len(pair.short.connection.repeated.headers), 4)}")


@given(style=styles(), first=sends, second=sends, opaque=st.integers(0, 2**31 - 1))
@settings(max_examples=100)
def test_a_pattern_finds_in_a_header_what_a_parser_finds(
    style: dict[str, Any], first: dict[str, Any], second: dict[str, Any], opaque: int
) -> None:
    headers = [frame(style, send, number)[8:] for send, number in ((first, 5), (second, opaque))]
    headers = [header.removesuffix(send["body"]) for header, send in zip(headers, (first, second), strict=True)]
    made = send_pattern(headers[0], style["code"], "UNIQ_KEY")
    found = made.fullmatch(headers[1]) if made is not None else None
    event(f"found: {found is not None}")
    if found is None:
        return
    parsed = json.loads(headers[1])
    assert int(found["opaque"]) == parsed["opaque"]
    names = LONG_NAMES if style["code"] == codes.SEND_MESSAGE else SHORT_NAMES
    ext = parsed["extFields"]
    assert (found["queue"].decode(), found["born"].decode()) == (ext[names[4]], ext[names[6]])
    assert json.loads(b'"' + found["properties"] + b'"') == ext[names[8]]
    assert f"UNIQ_KEY\x01{found['key'].decode()}" in ext[names[8]]
    # Everything else is as in the accepted header.
    for header in (parsed, before := json.loads(headers[0])):
        del header["opaque"]
        for name in (names[4], names[6], names[8]):
            del header["extFields"][name]
    assert parsed == before


def test_the_headers_of_javas_client_take_the_short_way(pair: Pair[SendSide]) -> None:
    """Without this the property above could hold because nothing is ever kept."""
    style = {
        "code": codes.SEND_MESSAGE_V2,
        "topic": "orders",
        "names": ["KEYS", "UNIQ_KEY", "WAIT"],
        "ends": True,
        "ascii": True,
        "separators": (",", ":"),
        "flag": 0,
        "last": "opaque",
        "n": "broker-a",
    }
    side = pair.short
    side.connect()
    pair.runner.run(side.change("orders", "two queues"))
    for number in range(3):
        send = {
            "queue": "1",
            "born": f"{1_600_000_000_000 + number}",
            "values": [f"order {number}", "true"],
            "prefix": "12" * 10,
            "number": 2**40 + number,
            "body": b"x",
        }
        pair.runner.run(side.feed([frame(style, send, number)], number + 1))
        assert len(side.connection.repeated.headers) == 1
    parser = side.connection.parser
    blob = frame(style, {**send, "number": 2**41}, 3)
    parser.writable()[: len(blob)] = blob
    parser.received(len(blob))
    assert side.connection.repeated.handle(side.connection, 0.0)
    side.wire.sent.clear()
