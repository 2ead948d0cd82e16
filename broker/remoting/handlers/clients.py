"""Clients and their groups: HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP, CHECK_CLIENT_CONFIG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.auth.permissions import CONSUME, GROUP, PUBLISH, QUERY, TOPIC, Need
from ....protocol.errors import BrokerError, BrokerFailure, FilterIllegal, InvalidParameter, NoPermission
from ....protocol.names import check_client_group
from ....protocol.remoting import codes, fastjson
from ....protocol.storage.delivery import retry_topic
from ...delivery.groups.clients import (
    CLUSTERING,
    EXPIRY_S,
    MESSAGE_MODELS,
    ClientIdentity,
    ClientRole,
    ClientSubscription,
)
from ...filters import compile_filter
from ...handlers.groups import SUBSCRIPTION_CHARS_MAX, SUBSCRIPTIONS_MAX
from ...store import TopicConfig
from ..gateway import RemotingClient
from ..request import AT_ONCE_BYTES_MAX
from ..rules import INNER_PRODUCER_GROUP, check

if TYPE_CHECKING:
    from ...delivery.groups.clients import ConsumerClients, ProducerGroups
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...delivery.groups.group import Queue
    from ...delivery.writer import RecordWriter
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..json_fields import JsonFields
    from ..request import RemotingRequest

GROUPS_MAX = 100
"""Maximum number of producer groups, and of consumer groups, that a heartbeat names."""
CLIENT_ID_CHARS_MAX = 255
FAULTS_MAX = 10
"""Maximum number of subscriptions that the answer to a heartbeat names."""
WORD_CHARS_MAX = 64
"""Longest name of a kind of expressions."""
CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
BEGINNINGS = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


async def heart_beat(
    request: RemotingRequest, groups: GroupCoordinator, producer_groups: ProducerGroups, writer: RecordWriter
) -> None:
    """Register a client in the groups that it names; it expires after two minutes without a heartbeat.

    All of the body is checked before a group changes. Topics for the retries of its consumer groups are created. As
    with RocketMQ, a topic of any name is taken: a pull is told that it does not exist. A subscription that no pull can
    select with is taken, too, so that the others are served; the answer is an error that names it, as that of a pull.
    """
    body = request.json_body()

    if len(request.received.body) <= AT_ONCE_BYTES_MAX:
        heartbeat = _heart_beat_in(body)
    else:
        heartbeat = await request.in_order(request.in_reader(lambda: _heart_beat_in(body)))
    await _register(request, groups, producer_groups, writer, heartbeat)


class _HeartBeat(NamedTuple):
    """The content of a heartbeat. ``faults``: the subscriptions that no pull can select with."""

    client_id: str
    fingerprint: int
    producers: list[str]
    consumers: dict[str, ClientRole]
    faults: list[str]


def _heart_beat_in(body: JsonFields) -> _HeartBeat:
    """Decode a heartbeat. Any thread."""
    without = body.flag("withoutSub")
    faults: list[str] = []
    consumers: dict[str, ClientRole] = {}
    producers = [check_client_group(row.text("groupName")) for row in body.objects("producerDataSet", GROUPS_MAX)]
    for row in body.objects("consumerDataSet", GROUPS_MAX):
        consumers[check_client_group(row.text("groupName"))] = _role(row, without, faults)
    client_id, fingerprint = _client_id(body.text("clientID")), body.integer("heartbeatFingerprint", 0)
    return _HeartBeat(client_id, fingerprint, producers, consumers, faults)


async def _register(
    request: RemotingRequest,
    groups: GroupCoordinator,
    producer_groups: ProducerGroups,
    writer: RecordWriter,
    heartbeat: _HeartBeat,
) -> None:
    client_id, fingerprint, producers, consumers, faults = heartbeat
    peer, received = request.peer, request.received
    assert isinstance(peer, RemotingClient)
    identity = ClientIdentity(client_id, peer, received.language, received.version, fingerprint)
    for name, role in consumers.items():
        topics = [Need((CONSUME,), TOPIC, topic) for topic in role.subscriptions or ()] if peer.access else ()
        check(request, Need((CONSUME,), GROUP, name), *topics)
    producers, refused = _producer_groups(request, producers)
    if refused is not None and not producers and not consumers:
        raise refused
    groups.clients.owners.check(client_id, peer.user_name)
    peer.introduce(client_id, received.language, received.version)
    for name in producers:
        producer_groups.heart_beat(name, client_id, peer, EXPIRY_S)
    unknown = False
    for name, role in consumers.items():
        groups.check_may_send_back(name)
        groups.ensure_group(name)
        unknown |= groups.clients.heart_beat(name, identity, role)
    # The client pulls from these topics next, so they exist before it gets its answer.
    retry_topics = [TopicConfig(retry_topic(name), read_queues=1, write_queues=1) for name in consumers]
    # A client that hears of a change sends its subscriptions again.
    fields = {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "true" if unknown or not identity.fingerprint else "false",
    }
    code = codes.SUBSCRIPTION_PARSE_FAILED if faults else codes.SUCCESS
    remark = "; ".join(faults + ([] if refused is None else [refused.message])) or None
    await writer.topics_exist(retry_topics)
    request.reply(fields, code=code, remark=remark)


def _producer_groups(request: RemotingRequest, names: list[str]) -> tuple[list[str], NoPermission | None]:
    """Return those of the producer groups that the user may join, and the refusal of another one, if there is any.

    One that is refused is left out: the consumers of the same client must live on.
    """
    allowed, refused = [], None
    for name in names:
        try:
            check(request, Need((PUBLISH,), GROUP, name))
        except NoPermission as error:
            refused = refused if name == INNER_PRODUCER_GROUP else error
        else:
            allowed.append(name)
    return allowed, refused


def _client_id(text: str) -> str:
    if not text or len(text) > CLIENT_ID_CHARS_MAX or not text.isprintable():
        raise InvalidParameter(
            f"clientID must have 1 to {CLIENT_ID_CHARS_MAX} printable characters, got {len(text)}: {text[:40]!r}"
        )
    return text


def _role(row: JsonFields, without: bool, faults: list[str]) -> ClientRole:
    """Return how a client consumes in a group; append to ``faults`` which subscriptions cannot be served.

    ``without``: the heartbeat leaves out its subscriptions.
    """
    subscriptions: dict[str, ClientSubscription] = {}
    chars = 0
    for each in row.objects("subscriptionDataSet", SUBSCRIPTIONS_MAX):
        found = _subscription(each)
        subscriptions[found.topic] = found
        try:
            tags_and_filter(found)
        except FilterIllegal as error:
            faults += [error.message] if len(faults) < FAULTS_MAX else []
        chars += len(found.topic) + len(found.expression)
    if chars > SUBSCRIPTION_CHARS_MAX:
        raise InvalidParameter(
            f"{row.what}: topics and expressions may have at most {SUBSCRIPTION_CHARS_MAX:,} characters together, got "
            f"{chars:,}"
        )
    return ClientRole(
        row.word("consumeType", CONSUME_TYPES, ""),
        row.word("messageModel", MESSAGE_MODELS, CLUSTERING),
        row.word("consumeFromWhere", BEGINNINGS, ""),
        None if without else subscriptions,
    )


def _subscription(row: JsonFields) -> ClientSubscription:
    return ClientSubscription(
        row.text("topic"),
        row.text("subString", "*", SUBSCRIPTION_CHARS_MAX) or "*",
        row.text("expressionType", "TAG", WORD_CHARS_MAX) or "TAG",
        row.integer("subVersion", 0),
    )


def unregister_client(request: RemotingRequest, gateway: RemotingGateway, producer_groups: ProducerGroups) -> None:
    ext = request.ext
    client_id, producer, consumer = ext.text("clientID"), ext.text("producerGroup", ""), ext.text("consumerGroup", "")
    if producer:
        producer_groups.leave(producer, client_id, request.peer.user_name)
    if consumer:
        gateway.consumers.leave(consumer, client_id, request.peer.user_name)
    request.reply()


def get_consumer_list_by_group(request: RemotingRequest, groups: GroupCoordinator) -> None:
    """Return the ids of a group's live clients, by which these divide its queues among themselves.

    If the group has members of FlintMQ's own kind, it returns their names: a client that does not find itself in the
    list gives up its queues, but if the request failed, it would keep them.
    """
    name = check_client_group(request.ext.text("consumerGroup"))
    members = groups.members_of(name)
    group = groups.clients.groups.get(name)
    if members or group is not None:
        ids = sorted(members) if members else list(group.clients if group is not None else ())
        request.reply(body=fastjson.encode({"consumerIdList": ids}))
    else:
        request.reply(code=codes.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")


def check_client_config(request: RemotingRequest) -> None:
    """Check a subscription, before its client starts. Raises ``FilterIllegal``."""
    row = request.json_body().object("subscriptionData")
    if row is not None:
        check_subscription(_subscription(row))
    request.reply()


# ---- GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY: requests that a live client answers, by way of
# the broker.

TIMEOUT_S = 10.0
_RUNNING_INFO_FIELDS = ("consumerGroup", "clientId", "jstackEnable")
_CONSUME_DIRECTLY_FIELDS = ("consumerGroup", "clientId", "msgId", "topic")
_SIZE_BYTES = 4


class ClientSilent(BrokerError):
    """The client did not answer in time."""

    code, name, retriable = codes.CONSUME_MSG_TIMEOUT, "CONSUME_MSG_TIMEOUT", True


async def get_consumer_running_info(request: RemotingRequest, groups: GroupCoordinator) -> None:
    """Return what a client says about itself: its settings, queues and rates."""
    client_id, client = _client(request, groups)
    fields = _passed_on(request, _RUNNING_INFO_FIELDS)
    await _ask(request, client, client_id, codes.GET_CONSUMER_RUNNING_INFO, fields, b"")


async def consume_message_directly(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Let a client consume a stored message at once, outside of its queue; return how that ended."""
    client_id, client = _client(request, groups)
    message_id = request.ext.text("msgId")
    fields = _passed_on(request, _CONSUME_DIRECTLY_FIELDS)
    fields |= {"brokerName": gateway.broker_name, "topicSysFlag": "0", "groupSysFlag": "0"}
    access = request.peer.access

    def view(hot: bool) -> memoryview:
        # By its id alone: a client that retries a message names its first topic, not that of the record.
        result = store.view(message_id, "", hot, lambda topic: access is None or access.allows(QUERY, TOPIC, topic))
        return memoryview(result.body)[_SIZE_BYTES * result.count :]

    await request.dispatched()
    record = await request.read(view)
    request.audit_change(f"group {fields['consumerGroup']}, client {client_id}, message {message_id}")
    await _ask(request, client, client_id, codes.CONSUME_MESSAGE_DIRECTLY, fields, bytes(record))


def _passed_on(request: RemotingRequest, names: tuple[str, ...]) -> dict[str, str]:
    """Return the fields that the request is defined to have: nothing else of a request is for another client."""
    fields = request.received.fields
    return {name: fields[name] for name in names if name in fields}


def _client(request: RemotingRequest, groups: GroupCoordinator) -> tuple[str, RemotingClient]:
    ext = request.ext
    name, client_id = check_client_group(ext.text("consumerGroup")), ext.text("clientId")
    group = groups.clients.groups.get(name)
    client = group.clients.get(client_id) if group is not None else None
    remote = client.identity.remote if client is not None else None
    if not isinstance(remote, RemotingClient):
        raise BrokerFailure(f"The Consumer <{name}> <{client_id}> not online")
    return client_id, remote


async def _ask(
    request: RemotingRequest, client: RemotingClient, client_id: str, code: int, fields: Mapping[str, str], body: bytes
) -> None:
    """Send the request to the client, and pass its answer on; give up after ``TIMEOUT_S``."""
    if not client.may_be_sent():
        raise ClientSilent(f"consumer <{client_id}> does not read what it is sent; try again later")
    # Before the client is asked, which would do its work for nothing.
    request.deferred.check_may_wait()
    try:
        answer = await client.asked(code, fields, body, TIMEOUT_S)
    except TimeoutError:
        raise ClientSilent(f"consumer <{client_id}> did not answer within {TIMEOUT_S:.0f} s") from None
    except ConnectionError:
        raise BrokerFailure(f"the connection of client {client_id} was lost before it answered") from None
    request.reply(body=answer.body, code=answer.code, remark=answer.remark or None)


# ---- LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues that one client of a group consumes in order.

QUEUES_MAX = 8_192
"""Maximum number of queues in a request."""


def lock_batch_mq(
    request: RemotingRequest, gateway: RemotingGateway, groups: GroupCoordinator, store: MessageStore
) -> None:
    """Lock queues for a live client of a group; return those that it holds now.

    Only existing queues can be locked. A client that the broker does not know gets no lock; it asks again, and sends
    heartbeats meanwhile.
    """
    group, client_id, wanted = _decode(request, groups)
    queues = []
    if _is_live(groups.clients, group, client_id):
        queues = [queue for queue in wanted if _exists(store, queue)]
    held = groups.clients.locks.lock(group, client_id, queues)
    request.reply(body=fastjson.encode({"lockOKMQSet": queue_rows(gateway, held)}))


def unlock_batch_mq(request: RemotingRequest, groups: GroupCoordinator) -> None:
    group, client_id, queues = _decode(request, groups)
    groups.clients.locks.unlock(group, client_id, queues)
    request.reply()


def _decode(request: RemotingRequest, groups: GroupCoordinator) -> tuple[str, str, list[Queue]]:
    """Return group, client and queues of a request whose user may consume for the group, and has the client."""
    body = request.json_body()
    group, client_id = check_client_group(body.text("consumerGroup")), body.text("clientId")
    check(request, Need((CONSUME,), GROUP, group))
    groups.clients.owners.check(client_id, request.peer.user_name)
    rows = body.objects("mqSet", QUEUES_MAX)
    queues = [(row.text("topic"), row.integer("queueId", low=0, high=2**31 - 1)) for row in rows]
    check(request, *(Need((CONSUME,), TOPIC, topic) for topic in dict.fromkeys(topic for topic, _ in queues)))
    return group, client_id, list(dict.fromkeys(queues))


def _is_live(clients: ConsumerClients, group: str, client_id: str) -> bool:
    found = clients.sharing(group)
    return found is not None and client_id in found.clients


def _exists(store: MessageStore, queue: Queue) -> bool:
    config = store.topics.get(queue[0])
    return config is not None and queue[1] < config.read_queues


def queue_rows(gateway: RemotingGateway, queues: Iterable[Queue]) -> list[dict[str, object]]:
    return [queue_row(gateway, queue) for queue in queues]


def queue_row(gateway: RemotingGateway, queue: Queue) -> dict[str, object]:
    return {"brokerName": gateway.broker_name, "queueId": queue[1], "topic": queue[0]}


# ---- Subscriptions of RocketMQ's clients in FlintMQ's form: tags, or a filter.

TAG = "TAG"
SQL92 = "SQL92"
TAGS_CHARS_MAX = 16 * 1024
"""Maximum length of a subscription's tags: those of a pull that waits take at most 0.5 MiB, which count towards
``limits.held_pulls_max``. RocketMQ has no such limit."""


def tags_and_filter(subscription: ClientSubscription) -> tuple[str, str]:
    """Return the tags and the filter that a pull for a subscription selects with; both empty for all messages.

    Raises ``FilterIllegal``. The filter is not parsed yet.
    """
    expression, kind = subscription.expression, subscription.expression_type
    if kind == SQL92:
        return "", expression
    if kind != TAG:
        raise FilterIllegal(
            f"the subscription to topic {subscription.topic:.127} is of type {kind!r}; use {TAG}, for tags such as "
            f"a || b, or {SQL92}, for a condition"
        )
    if len(expression) > TAGS_CHARS_MAX:
        raise FilterIllegal(
            f"the tags of topic {subscription.topic:.127} have {len(expression):,} characters; the maximum is "
            f"{TAGS_CHARS_MAX:,}"
        )
    return " || ".join(split_tags(expression)), ""


def split_tags(expression: str) -> list[str]:
    """Return the tags in an expression; none if it means all messages."""
    tags = [tag for tag in map(str.strip, expression.split("||")) if tag]
    # A part that means all messages makes the others superfluous.
    return [] if "*" in tags else tags


def check_subscription(subscription: ClientSubscription) -> None:
    """Raise ``FilterIllegal`` unless a pull can select with the subscription."""
    _, condition = tags_and_filter(subscription)
    if condition:
        compile_filter(condition)
