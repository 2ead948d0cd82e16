"""Names that try to escape from the store's folder, in every request: none succeeds, and the broker keeps running."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flintmq.broker.store.errors import CorruptFile
from flintmq.protocol import commands
from flintmq.protocol.commands import CONSUMER_OFFSET_STRUCT, PHYSICAL_OFFSET_STRUCT, Command
from flintmq.protocol.errors import FlintError, error_from_answer
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RawConnection, RunningBroker
from tests.store_tools import open_store

NAMES = [
    "../escaped",
    "../../escaped",
    "..",
    ".",
    "/escaped",
    "a/../../escaped",
    "a/b",
    "..\\escaped",
    "~/escaped",
    "a\0b",
    "a\nb",
    "a b",
    "..%2fescaped",
    "a.b",
    "C:escaped",
    "\u2025/escaped",
    "é",
    "-/",
    "",
    "x" * 300,
    "\x1b[2J",
    "$(touch escaped)",
    "`escaped`",
    "*",
]
OFFSET = CONSUMER_OFFSET_STRUCT.pack(0, 0)
ROW = msgpack.packb([b"x", {}])
HALF = "TRAN_MSG\x01true\x02PGROUP\x01{}\x02"

Door = Callable[[str], tuple[Command, dict[str, Any], bytes]]
DOORS: dict[str, Door] = {
    "produce": lambda name: (commands.PRODUCE, {"topic": name, "count": 1}, ROW),
    "produce by columns": lambda name: (
        commands.PRODUCE,
        {"topic": name, "count": 1, "layout": 1},
        msgpack.packb([b"x"]) + msgpack.packb([None]),
    ),
    "prepare": lambda name: (commands.PRODUCE, {"topic": name, "count": 1, "prepare": "a"}, ROW),
    "half message": lambda name: (commands.PRODUCE, {"topic": name, "count": 1, "common": HALF.format("g")}, ROW),
    "producer group": lambda name: (
        commands.PRODUCE,
        {"topic": "good", "count": 1, "common": HALF.format(name), "unique_prefix": "00" * 10, "unique_first": 1},
        ROW,
    ),
    "real topic": lambda name: (
        commands.PRODUCE,
        {"topic": "good", "count": 1, "common": f"REAL_TOPIC\x01{name}\x02"},
        ROW,
    ),
    "delayed": lambda name: (commands.PRODUCE, {"topic": name, "count": 1, "common": "DELAY\x011\x02"}, ROW),
    "create topic": lambda name: (commands.UPDATE_AND_CREATE_TOPIC, {"topic": name}, b""),
    "delete topic": lambda name: (commands.DELETE_TOPIC_IN_BROKER, {"topic": name}, b""),
    "pull": lambda name: (commands.PULL, {"topic": name, "queue": 0, "offset": 0}, b""),
    "topic stats": lambda name: (commands.GET_TOPIC_STATS_INFO, {"topic": name}, b""),
    "join group": lambda name: (
        commands.HEART_BEAT,
        {"group": name, "member": "m"},
        msgpack.packb([[["good", "", ""]], []]),
    ),
    "subscribe": lambda name: (
        commands.HEART_BEAT,
        {"group": "g", "member": "m"},
        msgpack.packb([[[name, "", ""]], []]),
    ),
    "commit for group": lambda name: (
        commands.UPDATE_CONSUMER_OFFSET,
        {"group": name, "topic": "good", "count": 1},
        OFFSET,
    ),
    "commit in topic": lambda name: (
        commands.UPDATE_CONSUMER_OFFSET,
        {"group": "g", "topic": name, "count": 1},
        OFFSET,
    ),
    "reset group": lambda name: (
        commands.INVOKE_BROKER_TO_RESET_OFFSET,
        {"group": name, "topic": "good", "to": "first"},
        b"",
    ),
    "delete group": lambda name: (commands.DELETE_SUBSCRIPTIONGROUP, {"group": name}, b""),
    "send back": lambda name: (
        commands.CONSUMER_SEND_MSG_BACK,
        {"group": name, "count": 1},
        PHYSICAL_OFFSET_STRUCT.pack(0),
    ),
    "end transaction": lambda name: (
        commands.END_TRANSACTION,
        {"group": name, "transaction_id": name or "x", "commit": True},
        b"",
    ),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker whose store is deep in a folder that is otherwise empty."""
    folder = tmp_path_factory.mktemp("names")
    brokers = Brokers(folder)
    yield brokers.start(store=folder / "deep" / "er" / "store")
    brokers.stop_all()


def outside(store: Path) -> list[str]:
    """Return the entries beside the store, up to two folders above it."""
    top = store.parents[1]
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if store not in path.parents and path != store)


@pytest.mark.parametrize("door", DOORS)
def test_no_name_from_a_client_makes_anything(running: RunningBroker, connect: ConnectionFactory, door: str) -> None:
    peer = connect(running)
    peer.produce("good", b"x", queue=0).raise_for_error()
    peer.pull("good", 0, 0).raise_for_error()  # when this is answered, the folder of its queue exists
    before, topics = outside(running.store), topics_of(peer)
    folders = sorted(path.name for path in (running.store / "consumequeue").iterdir())
    for name in NAMES:
        command, fields, body = DOORS[door](name)
        answer = peer.call(command, fields, body)
        assert answer.code != 0, name
        error = error_from_answer(answer.code, answer.fields)
        assert isinstance(error, FlintError)
        assert str(error)
    assert outside(running.store) == before
    assert topics_of(peer) <= topics | {
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
    assert sorted(path.name for path in (running.store / "consumequeue").iterdir()) == folders
    groups = msgpack.unpackb(peer.call(commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert not {row["group"] for row in groups} & set(NAMES)


def topics_of(peer: RawConnection) -> set[str]:
    return {row["topic"] for row in msgpack.unpackb(peer.call(commands.GET_ALL_TOPIC_CONFIG).raise_for_error().body)}


@pytest.mark.parametrize("name", ["../../escaped", "..", ".", "a/b", "/escaped", "a\0b", "", "x" * 300, "\udcff"])
def test_a_topic_table_with_a_name_that_leads_away_is_refused(tmp_path: Path, name: str) -> None:
    store = tmp_path / "deep" / "er" / "store"
    open_store(store).close()
    path = store / "config" / "topics.json"
    table = json.loads(path.read_text()) if path.exists() else {}
    table["topicConfigTable"] = {name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table))
    path.with_name("topics.json.bak").unlink(missing_ok=True)
    before = outside(store)
    with pytest.raises(CorruptFile, match=r"topics\.json.*cannot be a topic"):
        open_store(store)
    assert outside(store) == before


def test_a_broker_with_an_invalid_table_names_the_file(tmp_path: Path, broker: BrokerFactory) -> None:
    store = tmp_path / "store"
    first = broker(store=store)
    first.stop()
    path = store / "config" / "topics.json"
    row = {"topicName": "../x", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    for each in (path, path.with_name("topics.json.bak")):
        each.parent.mkdir(exist_ok=True)
        each.write_text(json.dumps({"topicConfigTable": {"../x": row}}))
    with pytest.raises(AssertionError, match=r"'\.\./x' cannot be a topic"):
        broker(store=store)
