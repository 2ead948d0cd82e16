"""Handlers get the parts of the broker that they name, and need no more: a test can call one without a broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest

from flintmq.broker.background.held_pulls import PullRequestHoldService, Wake
from flintmq.broker.background.loop_work import StepScheduler
from flintmq.broker.config import Settings
from flintmq.broker.delivery.topic_changes import TopicChanges, TopicService
from flintmq.broker.handlers import broker_admin, produce, pull, queries, topics
from flintmq.broker.handlers import groups as group_admin
from flintmq.broker.handlers.registry import HANDLERS
from flintmq.broker.requests.broker import Broker
from flintmq.broker.requests.counters import Counters
from flintmq.broker.store import MessageStore, TopicConfig
from flintmq.protocol import commands
from flintmq.protocol.errors import GroupNotExist, InvalidParameter, SystemBusy, TopicExistsAlready
from flintmq.protocol.fields import decode_fields
from flintmq.protocol.frames import Frame
from tests.paired_brokers import Connected, broker_of, running
from tests.recorded_request import RecordedRequest
from tests.store_tools import Message, make_topic, open_store, plain, put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path)
    make_topic(opened, "orders", 2)
    yield opened
    opened.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Yield a running broker, whose parts handlers get."""
    async with running(tmp_path, "async") as lifecycle:
        yield broker_of(lifecycle)


async def test_a_broker_has_what_each_handler_names(broker: Broker) -> None:
    for code, (handler, _) in HANDLERS.items():
        hints = typing.get_type_hints(handler, names_of_types(sys.modules[handler.__module__]))
        for name in list(inspect.signature(handler).parameters)[1:]:
            part = broker if name == "broker" else getattr(broker, name)
            classes = typing.get_args(hints[name]) or (hints[name],)
            is_call = typing.get_origin(hints[name]) is typing.get_origin(Callable[[], None])
            assert callable(part) if is_call else isinstance(part, classes), f"{commands.COMMANDS[code].name}: {name}"


def names_of_types(module: ModuleType) -> dict[str, Any]:
    """Return the names of a module, including those that it imports only for type checkers."""
    names = dict(vars(module))
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(statement.body, []), module.__name__, "exec"), names)
    return names


def test_handlers_import_neither_the_whole_store_nor_the_whole_broker() -> None:
    modules = {handler.__module__ for handler, _ in HANDLERS.values()}
    whole = ["flintmq.broker.store.message_store", "flintmq.broker.requests.broker"]
    program = f"import sys; from importlib import import_module as load; [load(each) for each in {sorted(modules)}]; "
    program += f"print([each for each in {whole} if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"[]\n"


async def test_a_topic_is_created_grows_and_never_shrinks(store: MessageStore) -> None:
    loop = asyncio.get_running_loop()
    holds = PullRequestHoldService(loop.time, loop.call_at, StepScheduler(loop.time, loop.call_soon))
    changes = TopicChanges(store, loop, lambda topic: None)
    service = TopicService(store, changes, holds)
    woken: list[Wake] = []
    holds.hold("orders", 0, 0, loop.time() + 60, woken.append)

    async def change(read_queues: int) -> RecordedRequest:
        params = commands.UpdateAndCreateTopicRequest("orders", read_queues, read_queues)
        request = RecordedRequest(commands.UPDATE_AND_CREATE_TOPIC, params)
        await topics.update_and_create_topic(request, service)
        return request

    grown = await change(3)
    _, target, before, after = grown.audited[0]
    assert (target, before["read_queues"], after["read_queues"]) == ("topic orders", 2, 3)
    assert woken, "a held pull must look again, because it may not be allowed to read any more"
    assert (await change(3)).audited == [], "nothing changed"
    with pytest.raises(TopicExistsAlready, match="queues can be added, but not removed"):
        await change(1)
    changes.close()


def test_the_figures_of_topics_come_from_the_store_and_the_counters(store: MessageStore) -> None:
    put(store, "orders", 1, plain(3))
    counters = Counters()
    counters.produced.of("orders").messages = 7
    request = RecordedRequest(commands.GET_TOPICS_STATS, commands.GetTopicsStatsRequest())
    request.begin(topics.get_topics_stats(request, store, counters))
    [(answer, body)] = request.answers
    [(name, *figures)] = msgpack.unpackb(body)
    assert (answer.count, name, figures[4]) == (1, "orders", 7)


async def test_only_a_known_group_is_shown(broker: Broker) -> None:
    store, groups = broker.store, broker.groups
    request = RecordedRequest(commands.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, commands.EmptyRequest())
    group_admin.get_all_subscriptiongroup_config(request, store, groups)
    assert request.answers[0][0].count == 0
    store.consumer_offsets.commit("billing", "orders", 0, 0)
    group_admin.get_all_subscriptiongroup_config(request, store, groups)
    assert msgpack.unpackb(request.answers[1][1])[0]["topics"] == ["orders"]
    unknown = RecordedRequest(commands.DELETE_SUBSCRIPTIONGROUP, commands.DeleteGroupRequest("other"))
    with pytest.raises(GroupNotExist):
        await group_admin.delete_subscriptiongroup(unknown, broker.group_admin)


def test_one_setting_that_must_not_change_refuses_all() -> None:
    changed: list[Settings] = []
    values = Settings()
    request = RecordedRequest(
        commands.UPDATE_BROKER_CONFIG,
        commands.UpdateBrokerConfigRequest(2),
        msgpack.packb({"limits.groups_max": 5, "store.path": "/elsewhere"}),
    )
    with pytest.raises(InvalidParameter, match=r"store\.path cannot be changed while the broker runs"):
        broker_admin.update_broker_config(request, values, changed.append)
    assert changed == []
    request = RecordedRequest(
        commands.UPDATE_BROKER_CONFIG, commands.UpdateBrokerConfigRequest(1), msgpack.packb({"limits.groups_max": 5})
    )
    broker_admin.update_broker_config(request, values, changed.append)
    assert changed[0].limits.groups_max == 5
    assert request.audited[0][1:] == ("setting limits.groups_max", values.limits.groups_max, 5)


async def create_topic(broker: Broker, name: str) -> None:
    created = asyncio.Event()
    broker.topic_changes.put(TopicConfig(name, read_queues=2, write_queues=2), lambda error: created.set())
    await created.wait()


def produced(broker: Broker, rows: int, **others: Any) -> list[Frame]:
    """Let the broker handle a PRODUCE of ``rows`` messages; return its responses."""
    body = b"".join(msgpack.packb(message.to_row()) for message in plain(rows))
    params = commands.ProduceRequest("orders", rows, layout=commands.LAYOUT_ROWS, **others)
    client = Connected(broker)
    produce.produce(client.request(commands.PRODUCE, params, body))
    return client.answers()


async def test_produce_appends_to_one_queue_after_the_other(broker: Broker) -> None:
    await create_topic(broker, "orders")
    for queue in (0, 1, 0):
        [answered] = produced(broker, 2)
        answer = decode_fields(commands.ProduceAnswer, answered.fields)
        assert answer.queue == queue
    assert broker.counters.produced.of("orders").messages == 6
    assert broker.next_queues.by_topic() == {"orders": 1}


async def test_produce_is_refused_while_too_many_bytes_are_in_flight(broker: Broker) -> None:
    await create_topic(broker, "orders")
    broker.in_flight.bytes = broker.in_flight.bytes_max + 1
    with pytest.raises(SystemBusy, match=r"limits\.in_flight_bytes_max"):
        produced(broker, 1)
    broker.in_flight.limit(1 << 30, stalled=True)
    broker.in_flight.bytes = 0
    with pytest.raises(SystemBusy):
        produced(broker, 1)
    assert broker.store.write_offset == broker.store.min_physical_offset, "nothing was written"


async def test_pull_returns_what_was_produced_before_it(broker: Broker) -> None:
    await create_topic(broker, "orders")
    produced(broker, 3, queue=1)
    client = Connected(broker)
    pull.pull(client.request(commands.PULL, commands.PullRequest("orders", 1, 1)), broker, None)
    [answered] = client.answers()
    answer = decode_fields(commands.RecordsAnswer, answered.fields)
    assert (answer.count, answer.next_offset, answer.max_offset) == (2, 3, 3)
    assert broker.counters.pulled.of("orders").messages == 2


def test_a_key_finds_messages_in_the_store(store: MessageStore) -> None:
    put(store, "orders", 0, [Message(b"first", ("o-1",)), Message(b"second", ("o-2",))])
    asked = RecordedRequest(commands.QUERY_BY_KEY, commands.QueryByKeyRequest("orders", "o-2"))
    asked.begin(queries.query_by_key(asked, store, Settings().limits))
    [(answer, body)] = asked.answers
    assert (answer.count, b"second" in body, b"first" in body) == (1, True, False)
