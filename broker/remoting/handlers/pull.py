"""PULL_MESSAGE and LITE_PULL_MESSAGE: translated into FlintMQ's PULL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import GROUP
from ....protocol.commands import PullRequest
from ....protocol.errors import BrokerError, InvalidParameter, NoPermission, QueueNotExist
from ....protocol.frames import REQUEST
from ....protocol.names import check_client_group
from ....protocol.remoting import codes
from ....protocol.storage.layout import UNIT, UNIT_BYTES
from ...delivery.groups.clients import ClientSubscription
from ...handlers.groups import SUBSCRIPTION_CHARS_MAX
from ...handlers.pull import SIZE_BYTES, PullContext, pull_records
from ...handlers.queries import shown_to
from ...store import KeySearch, QueryResult, WouldBlock
from ...store.read.queries import ARCHIVE_CURSOR, LATEST_MS, QUERY_PAGE_MAX
from ..request import PullMoved, RemotingRequest, pull_fields
from ..rules import sees
from .clients import TAG, tags_and_filter
from .groups import subscription_row
from .topics import reply_json

if TYPE_CHECKING:
    from ....protocol.errors import OffsetOutOfRange
    from ...delivery.groups.coordinator import GroupCoordinator
    from ...requests.broker import Broker
    from ...requests.request import Request
    from ...store import MessageStore, PullResult
    from ..gateway import RemotingGateway

FLAG_COMMIT_OFFSET = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4
FLAG_CLASS_FILTER = 8
BYTES_MAX_DEFAULT = 256 * 1024
"""RocketMQ's ``maxTransferBytesOnMessageInMemory``."""
COUNT_MAX = 32
"""RocketMQ's ``maxTransferCountOnMessageInMemory``."""
WAIT_MS_MAX = 30_000
_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1
_I64_MIN = -(2**63)


class SubscriptionMissing(BrokerError):
    """The broker knows no heartbeat of the group with this topic, such as after its start: the client sends one."""

    code, name, retriable = codes.SUBSCRIPTION_NOT_EXIST, "SUBSCRIPTION_NOT_EXIST", True


class SubscriptionOutdated(BrokerError):
    """The client changed its subscription after the last heartbeat that the broker got: the client sends another."""

    code, name, retriable = codes.SUBSCRIPTION_NOT_LATEST, "SUBSCRIPTION_NOT_LATEST", True


@dataclass(slots=True)
class RemotingPull(PullContext):
    """A pull of a RocketMQ client. ``group``: the one that it reads for, even if that commits nothing; ``asked``: its
    queue offset."""

    group: str
    asked: int

    def check(self, request: Request, params: PullRequest) -> None:
        """Raise if the group has members of FlintMQ's own kind now, or if an operator has reset its offset."""
        clients = request.broker.groups.clients
        clients.check_may_consume(self.group)
        offset = clients.take_reset(self.group, (params.topic, params.queue))
        if offset is not None:
            raise PullMoved("OFFSET_RESET", offset, 0, offset)

    def note(self, request: Request, params: PullRequest, pulled: PullResult) -> None:
        """Note and count what a client of the group gets."""
        assert isinstance(request, RemotingRequest), "pulls of the gateway"
        request.gateway.figures.count_pulled(params.topic, self.group, pulled.count, len(pulled.body))
        groups = request.broker.groups
        group = groups.clients.groups.get(params.group)
        if group is not None and (client_id := group.by_remote.get(request.peer)) is not None:
            group.pulled_by[params.topic, params.queue] = client_id
            groups.note_pulled(params.group, params.topic, params.queue, pulled.next_offset)

    def out_of_range(self, offset: int, error: OffsetOutOfRange) -> BrokerError:
        """Return what the client is told, as by ``DefaultMessageStore.getMessage``."""
        low, high = error.min_offset, error.max_offset
        if high == 0:
            return PullMoved("NO_MESSAGE_IN_QUEUE", 0, low, high)
        if offset < low:
            return PullMoved("OFFSET_TOO_SMALL", low, low, high)
        return PullMoved("OFFSET_OVERFLOW_BADLY", high, low, high)

    def respond(self, request: Request, pulled: PullResult, lost: tuple[int, int] | None) -> None:
        """Respond to a pull with its records, which are the wire format. Damaged ones are left out, with a remark."""
        assert isinstance(request, RemotingRequest), "pulls of the gateway"
        # The sizes that precede the records are for FlintMQ's own clients.
        body = memoryview(pulled.body)[SIZE_BYTES * pulled.count :]
        code, remark = codes.SUCCESS, "FOUND"
        if not pulled.count:
            # If the filter skipped messages, the client continues after them at once.
            passed = pulled.next_offset > self.asked
            code = codes.PULL_RETRY_IMMEDIATELY if passed else codes.PULL_NOT_FOUND
            remark = "NO_MATCHED_MESSAGE" if passed else "OFFSET_OVERFLOW_ONE"
        if lost is not None:
            remark = f"{remark}: {lost[0]} messages from offset {lost[1]} on were lost to damage"
        fields = pull_fields(pulled.next_offset, pulled.min_offset, pulled.max_offset)
        request.respond_encoded(request.head(code, fields, len(body), remark), body)


def pull_message(request: RemotingRequest, gateway: RemotingGateway, broker: Broker) -> None:
    """Answer a pull from memory, pass it to a reader thread, or hold it."""
    groups, store = broker.groups, broker.store
    ext = request.ext
    topic, group, flags = ext.text("topic"), ext.text("consumerGroup"), ext.integer("sysFlag", 0, high=_I32_MAX)
    queue, offset = ext.integer("queueId", high=_I32_MAX), ext.integer("queueOffset", low=_I64_MIN)
    check_may_pull(request, groups, store, group, topic, queue)
    if request.received.kind != REQUEST:
        raise InvalidParameter("a pull cannot be sent one-way, because it returns messages")
    if flags & FLAG_CLASS_FILTER:
        raise InvalidParameter("filter classes are not supported; subscribe with tags or with an SQL92 condition")
    context = RemotingPull(group, offset)
    live = groups.clients.groups.get(group)
    commits = live is None or live.clustering
    tags, condition = tags_and_filter(_subscription(request, groups, group, topic, flags))
    params = PullRequest(
        topic=topic,
        queue=queue,
        offset=max(offset, 0),
        max_count=min(max(ext.integer("maxMsgNums", COUNT_MAX, low=_I32_MIN, high=_I32_MAX), 1), COUNT_MAX),
        max_bytes=max(ext.integer("maxMsgBytes", BYTES_MAX_DEFAULT, low=_I32_MIN, high=_I32_MAX), 1),
        wait_ms=min(ext.integer("suspendTimeoutMillis", 0), WAIT_MS_MAX) if flags & FLAG_SUSPEND else 0,
        tags=tags,
        filter=condition,
        # A group that commits nothing has no progress that could be moved.
        group=group if commits else "",
    )
    # Clients that choose their queues themselves may pull and commit before their first heartbeat.
    groups.ensure_group(group)
    if flags & FLAG_COMMIT_OFFSET:
        committed = ext.integer("commitOffset", 0, low=_I64_MIN)
        if committed >= 0:
            gateway.commit(group, topic, queue, committed)
    # All fields have been read, and a pull that is held must not keep them in memory.
    request.translate(bytearray())
    request.release_frame()
    # FlintMQ's PULL has no such offsets; RocketMQ answers with the first one of the queue.
    if offset < 0:
        context.check(request, params)
        request.begin(_before_the_first(request, store, topic, queue))
        return
    pull_records(request, broker, params, context)


async def _before_the_first(request: RemotingRequest, store: MessageStore, topic: str, queue: int) -> None:
    await request.dispatched()
    low = await request.read(lambda hot: store.queue_reads.min_offset(topic, queue, hot=hot))
    high = store.queue_reads.max_offset(topic, queue)
    remark = "OFFSET_TOO_SMALL" if high else "NO_MESSAGE_IN_QUEUE"
    request.reply(pull_fields(low, low, high), code=codes.PULL_OFFSET_MOVED, remark=remark)


def check_may_pull(
    request: RemotingRequest, groups: GroupCoordinator, store: MessageStore, group: str, topic: str, queue: int
) -> None:
    """Raise unless clients of the group may read the queue."""
    check_client_group(group)
    if not store.groups.may_consume(group):
        raise NoPermission(f"group {group} is disabled; to enable it, set its consumeEnable")
    store.topics.check_has_messages(topic)
    config = store.topics.get(topic)
    queues = config.read_queues if config is not None else 0
    if queue >= queues:
        raise QueueNotExist(f"topic {topic} has no queue {queue} to read; it has {queues}", queues=queues)


def _subscription(
    request: RemotingRequest, groups: GroupCoordinator, group: str, topic: str, flags: int
) -> ClientSubscription:
    """Return the subscription that a pull selects with: its own, or that of its client's heartbeats."""
    ext = request.ext
    if flags & FLAG_SUBSCRIPTION:
        expression = ext.text("subscription", "*")
        if len(expression) > SUBSCRIPTION_CHARS_MAX:
            raise InvalidParameter(
                f"the subscription has {len(expression):,} characters; the maximum is {SUBSCRIPTION_CHARS_MAX:,}"
            )
        return ClientSubscription(topic, expression or "*", ext.text("expressionType", TAG) or TAG)
    consumers = groups.clients.groups.get(group)
    if consumers is None:
        raise SubscriptionMissing(f"the consumer's group info not exist: no heartbeat of group {group} has arrived")
    found = consumers.subscription(topic, request.peer)
    if found is None:
        raise SubscriptionMissing(
            f"the consumer's subscription not exist: no heartbeat of group {group} names topic {topic}"
        )
    wanted = ext.integer("subVersion", 0, low=_I64_MIN)
    if found.version < wanted:
        raise SubscriptionOutdated(
            f"the consumer's subscription not latest: the last heartbeat of group {group} has version {found.version} "
            f"for topic {topic}, and the pull {wanted}"
        )
    return found


# ---- Queries for messages: by physical offset, by key or unique key, and the units of a queue.

UNIQUE_KEY_COUNT_MAX = 32
"""Maximum number of messages in the answer to a query by unique key (``defaultQueryMaxNum``)."""
KEY_CHARS_MAX = 4_096
UNITS_MAX = 1_024
"""Maximum number of units in one answer."""
UNITS_HOT_MAX = 64


async def view_message_by_id(request: RemotingRequest, store: MessageStore) -> None:
    """Return the record at a physical offset, which is the second half of a message's offset id."""
    ext = request.ext
    physical_offset, topic = ext.integer("offset", low=-(2**63)), ext.text("topic", "")
    may_show = shown_to(request)

    def read(hot: bool) -> bytearray | None:
        below = store.dispatchable_offset
        return store.queries.visible_at(physical_offset, topic, hot=hot, visible_below=below, may_show=may_show)

    await request.dispatched()
    record = await request.read(read)
    if record is None:
        request.reply(
            code=codes.SYSTEM_ERROR,
            remark=f"can not find message by the offset, {physical_offset}: none begins there, it is damaged, it was "
            "removed with its topic or by retention, or it is not delivered yet",
        )
        return
    request.reply({}, record)


async def query_message(request: RemotingRequest, store: MessageStore) -> None:
    """Return the messages of a topic with a key, newest first: one of KEYS, or the unique key."""
    ext = request.ext
    topic, key = ext.text("topic"), ext.text("key")
    if not key or len(key) > KEY_CHARS_MAX:
        raise InvalidParameter(f"field key must have 1 to {KEY_CHARS_MAX:,} characters, not {len(key):,}")
    begin_ms, end_ms = (
        ext.integer("beginTimestamp", 0, low=-(2**63)),
        ext.integer("endTimestamp", LATEST_MS, low=-(2**63)),
    )
    unique = ext.flag("_UNIQUE_KEY_QUERY")
    if unique:
        count = UNIQUE_KEY_COUNT_MAX
    else:
        count = min(ext.integer("maxNum", high=2**31 - 1), QUERY_PAGE_MAX)
    store.topics.check_has_messages(topic)
    search = KeySearch(topic, key, max(begin_ms, 0), min(end_ms, LATEST_MS), count, unique=unique)

    if count == 0 or search.begin_ms > search.end_ms:
        found = QueryResult(0, "", 0, bytearray())
    else:
        await request.dispatched()
        found = await request.read(lambda hot: store.query(search, hot=hot))
    # The sizes that precede the records are for FlintMQ's own clients.
    body: bytes | memoryview = memoryview(found.body)[SIZE_BYTES * found.count :]
    if found.cursor.startswith(ARCHIVE_CURSOR) and found.count < count:
        # These clients ask for one page, of which the disk has the first part.
        rest = replace(search, max_count=count - found.count, cursor=found.cursor)
        older = await request.read(lambda hot: store.query(rest, hot=hot))
        body = b"".join((body, memoryview(older.body)[SIZE_BYTES * older.count :]))
    fields = {
        "indexLastUpdateTimestamp": str(store.index.end_ms),
        "indexLastUpdatePhyoffset": str(store.index.end_physical_offset),
    }
    if found.count:
        request.reply(fields, body)
        return
    remark = "can not find message, maybe time range not correct"
    if found.damaged:
        remark = f"{found.damaged} messages with this key are damaged; `flintmq-broker verify` says what helps"
    request.reply(fields, code=codes.QUERY_NOT_FOUND, remark=remark)


def _subscription_of(request: RemotingRequest, gateway: RemotingGateway, group: str, topic: str) -> dict[str, Any]:
    """Return what a group's live clients want of a topic, for the answer to QUERY_CONSUME_QUEUE."""
    if not group:
        return {}
    clients = gateway.consumers.groups.get(group) if sees(request, GROUP, group) else None
    found = clients.subscriptions.get(topic) if clients is not None else None
    if found is None:
        return {"filterData": f"{group}@{topic} is not online!"}
    # The compiled filter of an SQL92 condition, which has no equal here.
    return {"filterData": "null", "subscriptionData": subscription_row(found)}


async def query_consume_queue(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    """Return units of a queue: where the log has each message, its size, and the code of its tag.

    With them comes the subscription of the live clients of ``consumerGroup``, if the request names one.
    """
    ext = request.ext
    topic, queue_id = ext.text("topic"), ext.integer("queueId", high=2**31 - 1)
    index, count = ext.integer("index", low=-(2**63)), min(ext.integer("count", high=2**31 - 1), UNITS_MAX)
    store.topics.check_has_messages(topic)
    wanted = _subscription_of(request, gateway, ext.text("consumerGroup", ""), topic)

    def read(hot: bool) -> dict[str, Any]:
        if hot and count > UNITS_HOT_MAX:
            raise WouldBlock
        queue = store.queue_reads.queue(topic, queue_id)
        low = store.queue_reads.min_offset(topic, queue_id, hot=hot)
        high = store.queue_reads.max_offset(topic, queue_id)
        rows = []
        if queue is not None and low <= index < high:
            blob = queue.read_units(index, min(count, high - index), hot=hot)
            blob = blob[: len(blob) - len(blob) % UNIT_BYTES]
            rows = [
                {"eval": False, "physicOffset": physical, "physicSize": size, "tagsCode": tags_code}
                for physical, size, tags_code in UNIT.unpack_all(blob)
            ]
        return {"maxQueueIndex": high, "minQueueIndex": low, "queueData": rows, **wanted}

    await request.dispatched()
    reply_json(request, await request.read(read))
