"""Popping: read messages of a topic's queues for one consumer of many, or wait for some. Both protocols use it."""

from __future__ import annotations

import logging
import os
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ...protocol.auth.permissions import CONSUME, GROUP, TOPIC, Need
from ...protocol.commands import (
    PHYSICAL_OFFSET_STRUCT,
    RECEIPT_STRUCT,
    RECORD_SIZE_STRUCT,
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    PopMessageAnswer,
    PopMessageRequest,
    ReceiptsAnswer,
    SendMessageBackAnswer,
    SendMessageBackRequest,
)
from ...protocol.errors import (
    BrokerFailure,
    DelayIllegal,
    InvalidParameter,
    OffsetOutOfRange,
    QueueNotExist,
    SystemBusy,
)
from ...protocol.fields import decode_fields
from ...protocol.names import check_client_group, check_name
from ...protocol.storage.delivery import DELAY_LEVEL_MAX, RETRY_TOPIC_PREFIX, old_pop_retry_topic, pop_retry_topic
from ...protocol.storage.layout import RECORD
from ..delivery.old_retries import OldRetries, is_alone
from ..delivery.pop.service import ALL_QUEUES, WaitEnd
from ..delivery.pop.table import QueueKey, Take
from ..delivery.redelivery import NOT_COUNTED, FailedMessages, RetryPolicy
from ..filters import compile_filter
from ..requests.short_pops import Settling, Wish
from ..store import CorruptLog, DamagedRecord, PullResult, PullSelection, WouldBlock
from .groups import STARTS
from .pull import HEAD_BYTES_MAX, PARSED_AT_ONCE_CHARS, SIZE_BYTES, parse_tags

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from ..background.held_pulls import Share
    from ..delivery.pop.service import PopService, Receipt, Wait, Waits
    from ..delivery.redelivery import RetryService
    from ..filters import Filter
    from ..requests.broker import Broker
    from ..requests.dispatch import DispatchScheduler
    from ..requests.request import Request
    from ..store import MessageStore
    from ..store.read.pulls import RecordFilter

POP_COUNT_MAX = 32
"""Maximum number of messages of one pop."""
POP_BYTES_MAX = 1024 * 1024
"""Maximum bytes of records in one answer; a single larger record is answered alone."""
RETRY_FIRST_SHARE = 0.2
"""Share of pops that look at the retry topic first; the others look at it if the topic has too few messages."""
FRUITLESS_STEPS_MAX = 16
"""Maximum number of reads without a match in a row before other requests get their turn."""
YOUNG_SHARE = 0.4
"""Part of the machine's memory: a queue is young while the log since its first message is smaller."""

_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = RECORD.at["queue_offset"]

log = logging.getLogger(__name__)


class PopParams(NamedTuple):
    """A consumer's request for messages. ``queue``: -1 for all queues; ``wait_ms``: how long to wait for a message.

    ``tags``, ``filter``: as in a PULL. ``start``, ``start_ms``: where a group without progress begins, as in a
    HEART_BEAT; if empty, RocketMQ's rule applies: ``from_first``, which applies if the topic's queue is not young.
    ``tells_rest``: the answer says how many messages are left.
    """

    # A tuple, because every pop makes one: a frozen dataclass takes longer.
    group: str
    topic: str
    queue: int
    count: int  # type: ignore[assignment]  # hides a method of tuples
    invisible_ms: int
    wait_ms: int
    tags: str = ""
    filter: str = ""
    from_first: bool = True
    ordered: bool = False
    attempt: str = ""
    bytes_max: int = POP_BYTES_MAX
    start: str = ""
    start_ms: int = 0
    tells_rest: bool = False


class PoppedQueue(NamedTuple):
    """Messages of one queue. ``start``: offset at which the read began; ``counts``: earlier deliveries of each offset
    of an ordered queue."""

    topic: str
    queue: int
    start: int
    offsets: list[int]
    records: list[memoryview]
    counts: dict[int, int]


@dataclass(slots=True)
class Popped:
    """The result of a pop. ``rest``: number of messages that are left in its queues; counted only if it is needed."""

    pop_ms: int = 0
    rest: int = 0
    count: int = 0
    bytes: int = 0
    queues: list[PoppedQueue] = field(default_factory=list)


def check_may_pop(request: Request, broker: Broker, group: str, topic: str) -> None:
    """Raise if the client may not pop messages of the topic for the group, at the moment."""
    if (access := request.peer.access) is not None:
        access.check(Need((CONSUME,), TOPIC, topic))
        access.check(Need((CONSUME,), GROUP, group))
    broker.pops.check_may_pop(group, topic)


def queues_to_visit(store: MessageStore, params: PopParams) -> list[tuple[str, int]]:
    """Return the queues that a pop looks at, in their order: those of the topic, and those of its retry topics.

    A random queue begins, so that all are served although each pop takes only what it wants.
    """
    topic, queue = params.topic, params.queue
    config = store.topics.get(topic)
    count = config.read_queues if config is not None else 0
    shift = random.randrange(count) if count else 0  # noqa: S311 - a fair choice is enough
    own = [(topic, (shift + each) % count) for each in range(count)] if queue == ALL_QUEUES else [(topic, queue)]
    found = [config for name in _retry_topics(params) if (config := store.topics.get(name)) is not None]
    if not found or params.ordered or topic.startswith(RETRY_TOPIC_PREFIX):
        return own
    retries = [(config.name, each) for config in found for each in range(config.read_queues)]
    return retries + own if random.random() < RETRY_FIRST_SHARE else own + retries  # noqa: S311


def _retry_topics(params: PopParams) -> tuple[str, str]:
    return old_pop_retry_topic(params.group, params.topic), pop_retry_topic(params.group, params.topic)


def first_offset(store: MessageStore, key: QueueKey, *, from_first: bool, hot: bool) -> int:
    """Return the offset at which a group without progress begins with a queue.

    As RocketMQ's ``getInitOffset``: at the first message, or at the last; but a group that is as new as the topic
    misses nothing, so it begins at the first message of a young queue too. Raises ``WouldBlock`` with ``hot``.
    """
    reads = store.queue_reads
    first, end = reads.min_offset(key.topic, key.queue, hot=hot), reads.max_offset(key.topic, key.queue)
    if from_first or key.topic.startswith(RETRY_TOPIC_PREFIX) or end <= first:
        return first
    queue = reads.queue(key.topic, key.queue)
    if first == 0 and queue is not None:
        behind = store.write_offset - queue.unit(0, hot=hot)[0]
        if behind < YOUNG_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            return 0
    return max(end - 1, first)


class Pop:
    """One pop from its request to its answer. ``done`` gets what was asked for, without tags and filter; the result,
    with no messages if the time is over; and whether the consumer could not wait because too many requests do.

    ``done`` must not keep the parameters itself: their texts would stay in memory while the pop waits.
    """

    def __init__(
        self,
        request: Request,
        broker: Broker,
        pops: PopService,
        params: PopParams,
        done: Callable[[PopParams, Popped, bool], None],
    ) -> None:
        self._request = request
        self._broker = broker
        self._pops = pops
        self._store = broker.store
        self._params = params
        self._done = done
        self._deadline = broker.loop.time() + params.wait_ms / 1000
        self._share: Share | None = None
        self._popped = Popped()
        self._targets: list[tuple[str, int]] = []
        self._fruitless = 0
        self._last_time = params.wait_ms <= 0
        self._begins_at = inf
        """When the group begins with a topic for which it waits, in seconds of the loop's clock."""
        self._checked = False
        """The client's rights were checked in this turn."""

    def start(self) -> None:
        """Begin. Raises a ``BrokerError`` if the request is refused."""
        params = self._params
        check_may_pop(self._request, self._broker, params.group, params.topic)
        if len(params.tags) + len(params.filter) > PARSED_AT_ONCE_CHARS:
            self._request.deferred.check_may_wait()
            self._request.step(self._select)
        else:
            self._checked = True
            self._select()
            self._checked = False

    def _select(self) -> None:
        params, request = self._params, self._request
        tags = parse_tags(params.tags) if params.tags else None
        records: Filter | None = compile_filter(params.filter) if params.filter else None
        request.release_frame()
        if tags is not None or records is not None:
            self._share = request.deferred.share(self._broker.selections.share(tags, records))
        if params.tags or params.filter:
            # From here on the pop refers only to the shared selection, whose memory is counted.
            self._params = params._replace(tags="", filter="")
        if self._last_time:
            request.after_dispatch(self._begin)  # a pop that does not wait must see everything acknowledged
        else:
            self._broker.dispatch.is_done()  # called because it dispatches what is due
            self._begin()

    def _begin(self) -> None:
        """Look at all queues."""
        params = self._params
        if not self._checked:
            check_may_pop(self._request, self._broker, params.group, params.topic)
        self._popped = Popped()
        self._targets = queues_to_visit(self._store, params)
        self._targets.reverse()
        self._begins_at = inf
        if params.start in ("", "first") or self._broker.groups.begins_at_first(params.group, params.topic):
            self._next()
        elif params.start == "time" and (left_ms := params.start_ms - self._store.commitlog.next_store_ms()) > 0:
            self._targets = []  # the group begins with the topic when the time has come
            self._begins_at = self._broker.loop.time() + left_ms / 1000
            self._next()
        else:
            self._request.read_then(self._begins, self._begun)

    def _begins(self, hot: bool) -> dict[int, int]:
        """Return where the group begins with each queue of a topic that it has not read before. Any thread."""
        params, reads = self._params, self._store.queue_reads
        config = self._store.topics.get(params.topic)
        queues = range(config.read_queues if config is not None else 0)
        if params.start == "last":
            return {queue: reads.max_offset(params.topic, queue) for queue in queues}
        return {queue: reads.offset_by_time(params.topic, queue, params.start_ms, hot=hot) for queue in queues}

    def _begun(self, begins: dict[int, int]) -> None:
        """Commit where the group begins with all queues: one that is added later is read from its first message."""
        params, take = self._params, self._take()
        for queue, begin in begins.items():
            key = QueueKey(params.group, params.topic, queue)
            if self._pops.table.start(key) is None:
                self._pops.take(key, begin, (), begin, take, take.now_ms)
        self._request.after_saved(self._next)

    def _next(self) -> None:
        """Take from the queues that are left until there are enough messages."""
        popped, params = self._popped, self._params
        take = self._take()
        while self._targets and popped.count < params.count and popped.bytes < params.bytes_max:
            key = QueueKey(params.group, *self._targets[-1])
            start, room, blocked = self._pops.table.look(key, take)
            if blocked or room <= 0 or start == self._store.queue_reads.max_offset(key.topic, key.queue):
                self._targets.pop()
                if room <= 0:
                    popped.rest += self._left_in(key, take)
                continue
            if not self._read(key, start, min(room, params.count - popped.count), take):
                return
        self._finish()

    def _left_in(self, key: QueueKey, take: Take) -> int:
        """Return the number of messages that a queue could give if the group might have more in flight."""
        start, _, blocked = self._pops.table.look(key, take)
        return 0 if blocked else self._store.queue_reads.max_offset(key.topic, key.queue) - (start or 0)

    def _take(self) -> Take:
        params = self._params
        return Take(self._pops.now_ms(), params.invisible_ms, ordered=params.ordered, attempt=params.attempt)

    def _read(self, key: QueueKey, start: int | None, room: int, take: Take) -> bool:
        """Read and take from one queue; return False if that is done later."""
        selection = self._selection(key, room)

        def read(hot: bool) -> tuple[int, PullResult | BrokerError]:
            begin = start
            if begin is None:
                begin = first_offset(self._store, key, from_first=self._params.from_first, hot=hot)
            return begin, self._pull(key, begin, selection, hot)

        filtered = selection.records is not None or self._fruitless >= FRUITLESS_STEPS_MAX
        if not filtered and self._broker.send_memory.may_read(self._request.responses):
            try:
                result = read(True)
            except WouldBlock:
                pass
            else:
                self._take_read(key, *result, room, take)
                return True

        def got(result: tuple[int, PullResult | BrokerError]) -> None:
            self._got(key, *result, take)
            self._next()

        instead = self._finish if self._popped.count else None
        if filtered:
            self._fruitless = 0
            self._request.step(lambda: self._request.read_then(read, got, instead), instead)
        else:
            self._request.read_then(read, got, instead)
        return False

    def _selection(self, key: QueueKey, room: int) -> PullSelection:
        limit = self._broker.limits.frame_bytes_max - HEAD_BYTES_MAX - self._popped.bytes
        size = min(self._params.bytes_max - self._popped.bytes, self._broker.send_memory.answer_bytes(), limit)
        # Messages that are delivered again were selected before.
        share = self._share if key.topic == self._params.topic else None
        tags = share.selection.tags if share is not None else None
        records: RecordFilter | None = share.selection.records if share is not None else None
        if key.topic == _retry_topics(self._params)[0]:
            records = OldRetries(key.group, self._params.topic, alone=is_alone(self._store, key.topic))
        return PullSelection(room, max(size, 1), tags, records, not self._popped.count)

    def _pull(self, key: QueueKey, start: int, selection: PullSelection, hot: bool) -> PullResult | BrokerError:
        """Return what a read found, or the error that says from where on the queue can be read."""
        try:
            return self._store.pulls.pull(key.topic, key.queue, start, selection, hot=hot)
        except OffsetOutOfRange as error:
            return error
        except DamagedRecord as error:
            log.error("group %s does not get message %d of %s: %s", key.group, start, key, error)
            return OffsetOutOfRange(str(error), min_offset=error.queue_offset + 1, max_offset=error.queue_offset + 1)
        except CorruptLog as error:
            log.error("%s", error)
            raise BrokerFailure(str(error)) from error

    def _got(self, key: QueueKey, start: int, pulled: PullResult | BrokerError, take: Take) -> None:
        """Take what was read in another turn, unless another consumer has taken from the queue meanwhile."""
        now, room, blocked = self._pops.table.look(key, take)
        if blocked or (now is not None and now != start):
            return  # looked at again
        self._take_read(key, start, pulled, max(min(room, self._params.count - self._popped.count), 0), take)

    def _take_read(self, key: QueueKey, start: int, pulled: PullResult | BrokerError, room: int, take: Take) -> None:
        """Take at most ``room`` of the messages that were read. The queue's state was looked at in this turn."""
        table, popped = self._pops.table, self._popped
        if isinstance(pulled, OffsetOutOfRange):
            self._pass_unreadable(key, start, pulled, take)
            return
        assert isinstance(pulled, PullResult)
        pop_ms = table.pop_ms(key, take.now_ms, self._alike(key))
        if popped.count and pop_ms > popped.pop_ms:
            self._targets.pop()  # its receipts need a later time than those of this answer
            popped.rest += pulled.max_offset - start
            return
        if not popped.count:
            popped.pop_ms = pop_ms
        offsets, records = _records(pulled)
        end = pulled.next_offset if len(offsets) <= room else offsets[room]
        kept = self._pops.take(key, start, offsets[:room], end, take, popped.pop_ms)
        if kept:
            if len(kept) < len(offsets):  # the others were settled before, or are too many
                taken = set(kept)
                records = [record for offset, record in zip(offsets, records, strict=True) if offset in taken]
            counts = dict(table.counts(key)) if take.ordered else {}
            popped.queues.append(PoppedQueue(key.topic, key.queue, start, kept, records, counts))
            popped.count += len(kept)
            popped.bytes += sum(map(len, records))
            self._fruitless = 0
        else:
            self._fruitless += 1
        if take.ordered and kept:
            self._targets.pop()  # the queue gives nothing more before these are settled
        elif end == start or (kept and end < pulled.max_offset and pulled.count < room):
            popped.rest += pulled.max_offset - end  # the next record is too large for this answer
            self._targets.pop()

    def _alike(self, key: QueueKey) -> QueueKey | None:
        """Return the queue of the retry topic's other name, which a receipt does not tell from this one."""
        topic, names = self._params.topic, _retry_topics(self._params)
        return key._replace(topic=names[key.topic == names[0]]) if key.topic != topic else None

    def _pass_unreadable(self, key: QueueKey, start: int, error: OffsetOutOfRange, take: Take) -> None:
        """Continue at the next message that can be read; retention or damage took those before it."""
        moved_to = error.min_offset if start < error.min_offset else error.max_offset
        log.warning("group %s: queue %d of %s continues at %d: %s", key.group, key.queue, key.topic, moved_to, error)
        if moved_to < start:
            self._store.consumer_offsets.commit(*key, moved_to)
        else:
            self._pops.take(key, start, (), moved_to, take, take.now_ms)

    def _finish(self) -> None:
        popped, params = self._popped, self._params
        left, self._targets = self._targets, []
        if popped.count:
            if params.tells_rest or self._pops.waits.count(params.group, params.topic):
                take = self._take()
                popped.rest += sum(self._left_in(QueueKey(params.group, *target), take) for target in left)
                if popped.rest > 0:
                    self._pops.left_some(params.group, params.topic)
            traffic = self._broker.counters.pulled.of(params.topic)
            traffic.frames += 1
            traffic.messages += popped.count
            traffic.bytes += popped.bytes
            # The group may have begun with a queue.
            self._request.after_saved(lambda: self._done(params, popped, False))
        elif self._last_time:
            popped.pop_ms = self._pops.now_ms()
            self._done(params, popped, False)
        else:
            self._hold()

    def _hold(self) -> None:
        params = self._params
        self._request.source.repeated.served = 0  # a client whose pops wait would leave the short way at once
        deadline = min(self._deadline, self._begins_at)
        if not hold(self._request, self._broker.dispatch, self._pops.waits, params, deadline, self._woken):
            self._popped.pop_ms = self._pops.now_ms()
            self._done(params, self._popped, True)

    def _woken(self, reason: WaitEnd) -> None:
        begins = reason is WaitEnd.EXPIRED and self._begins_at < self._deadline
        if reason is not WaitEnd.WOKEN and not begins:
            self._last_time = True
        run_woken(self._request, self._begin)


def hold(
    request: Request,
    dispatch: DispatchScheduler,
    waits: Waits,
    params: PopParams,
    deadline: float,
    woken: Callable[[WaitEnd], None],
) -> bool:
    """Let a request wait until ``deadline`` (seconds of the loop's clock); return False if too many requests wait."""
    try:
        request.deferred.check_may_wait()
    except SystemBusy:
        return False
    held: list[Wait] = []

    def ended(reason: WaitEnd) -> None:
        request.deferred.held_pulls.discard(held[0])
        woken(reason)

    held.append(waits.hold(params.group, params.topic, params.queue, deadline, ended))
    request.deferred.held_pulls.add(held[0])
    dispatch.hurry()
    return True


def run_woken(request: Request, call: Callable[[], None]) -> None:
    """Call ``call`` after a wait, or when the client reads again."""
    if request.responses.paused:
        request.deferred.waiting.append(lambda: request.attempt(call))
        return
    request.attempt(call)
    request.deferred.on_progress()


def _records(pulled: PullResult) -> tuple[list[int], list[memoryview]]:
    """Return queue offset and record of each record that a read found."""
    body = memoryview(pulled.body)
    at = SIZE_BYTES * pulled.count
    offsets, records = [], []
    for (size,) in struct.iter_unpack(">I", body[:at]):
        offsets.append(_QUEUE_OFFSET.unpack_from(body, at + _QUEUE_OFFSET_AT)[0])
        records.append(body[at : at + size])
        at += size
    return offsets, records


# ---- Work queues: POP_MESSAGE, ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME. RocketMQ's requests use the same
# service.


def pop_message(request: Request, broker: Broker, pops: PopService) -> None:
    """Answer a pop with messages, at once or when some arrive."""
    params = decode_fields(PopMessageRequest, request.frame.fields)
    check_client_group(params.group)
    if params.start not in STARTS:
        raise InvalidParameter(f"start must be first, last or time, not {params.start!r}")
    store, groups = broker.store, broker.groups
    store.topics.check_has_messages(params.topic)
    if params.topic.startswith(RETRY_TOPIC_PREFIX):
        raise InvalidParameter(
            f"topic {params.topic} has messages to be delivered again; they come with those of the topic that they "
            "were sent to, so pop that one"
        )
    config = store.topics.get(params.topic)
    if config is not None and params.queue >= config.read_queues:
        queues = config.read_queues
        raise QueueNotExist(f"topic {params.topic} has no queue {params.queue}; it has {queues}", queues=queues)
    # Before the group is made: a pop that is refused leaves nothing behind.
    groups.clients.check_may_pop(params.group)
    groups.ensure_group(params.group)
    wanted = PopParams(
        group=params.group,
        topic=params.topic,
        queue=params.queue,
        count=params.max_count,
        invisible_ms=params.lease_ms,
        wait_ms=params.wait_ms if params.max_count else 0,
        tags=params.tags,
        filter=params.filter,
        bytes_max=min(params.max_bytes, POP_BYTES_MAX),
        start=params.start,
        start_ms=params.start_ms,
    )
    repeated = request.source.repeated
    fields = repeated.pop_fields(request.frame, "max_count")  # first, because a frame that may wait is released
    Pop(request, broker, pops, wanted, lambda params, popped, full: _respond(request, params, popped)).start()
    selects = wanted.filter or wanted.tags not in ("", "*")
    is_answered = request.deferred.is_idle()
    if fields is not None and is_answered and wanted.count and not selects and wanted.start != "time":
        bytes_max = min(wanted.bytes_max, broker.limits.frame_bytes_max - HEAD_BYTES_MAX)
        wish = Wish(params.group, params.topic, params.queue, bytes_max, params.lease_ms, waits=wanted.wait_ms > 0)
        repeated.keep_pops(fields, wish)


def _respond(request: Request, params: PopParams, popped: Popped) -> None:
    """Send the messages, those of the topic first."""
    # Retried messages come last, because the answer says only how many there are.
    queues = sorted(popped.queues, key=lambda each: each.topic != params.topic)
    records = [record for each in queues for record in each.records]
    retried = sum(len(each.records) for each in queues if each.topic != params.topic)
    sizes = [RECORD_SIZE_STRUCT.pack(len(record)) for record in records]
    request.respond(PopMessageAnswer(len(records), retried, popped.pop_ms), b"".join([*sizes, *records]))


def receipts_in(request: Request, pops: PopService, group: str, topic: str, count: int) -> list[Receipt]:
    """Return the receipts in the body of a request. Raises ``InvalidParameter``."""
    body = request.frame.body
    if len(body) != count * RECEIPT_STRUCT.size:
        raise InvalidParameter(
            f"expected {count * RECEIPT_STRUCT.size} bytes of body for {count} receipts, got {len(body)}"
        )

    retry_topic, old_retry_topic = pop_retry_topic(group, topic), old_pop_retry_topic(group, topic)

    def receipt(retry: int, queue: int, offset: int, pop_ms: int) -> Receipt:
        if retry:
            # It does not tell the two names of a retry topic apart, but never fits messages of both.
            old = QueueKey(group, old_retry_topic, queue)
            is_old = pops.table.is_in_flight(old, offset, pop_ms)
            return old if is_old else QueueKey(group, retry_topic, queue), offset, pop_ms
        return QueueKey(group, topic, queue), offset, pop_ms

    return [receipt(*each) for each in RECEIPT_STRUCT.iter_unpack(body)]


def ack_message(request: Request, pops: PopService) -> None:
    params = decode_fields(AckMessageRequest, request.frame.fields)
    _answer(request, pops.settle_all(receipts_in(request, pops, params.group, params.topic, params.count)))
    repeated = request.source.repeated
    if (fields := repeated.pop_fields(request.frame, "count")) is not None:
        repeated.keep_pops(fields, Settling(params.group, params.topic))


def _answer(request: Request, valid: Sequence[bool]) -> None:
    request.respond(ReceiptsAnswer(sum(valid)), bytes(valid))


async def change_message_invisibletime(request: Request, pops: PopService) -> None:
    """Renew leases, or take back messages that no consumer has handled."""
    params = decode_fields(ChangeInvisibleTimeRequest, request.frame.fields)
    receipts = receipts_in(request, pops, params.group, params.topic, params.count)
    if params.lease_ms:
        _answer(request, pops.renew_all(receipts, params.lease_ms))
        return

    request.deferred.check_may_wait()
    valid, *_ = await pops.redeliver(receipts, [""] * len(receipts), NOT_COUNTED)
    _answer(request, valid)


# ---- CONSUMER_SEND_MSG_BACK: the messages that a consumer could not handle are stored again.


async def consumer_send_msg_back(request: Request, retries: RetryService, pops: PopService) -> None:
    """Store the messages of the request again, all or none; respond once that is acknowledged.

    Of popped messages, those whose receipts are valid.
    """
    params = decode_fields(SendMessageBackRequest, request.frame.fields)
    check_name("group", params.group)
    if params.delay_level > DELAY_LEVEL_MAX:
        raise DelayIllegal(f"delay_level must be at most {DELAY_LEVEL_MAX}, got {params.delay_level}")
    policy = RetryPolicy(params.delay_level, params.retry_times_max, params.member)
    # Only popped messages come with their topic: the body has receipts instead of offsets.
    if params.topic:
        receipts = receipts_in(request, pops, params.group, params.topic, params.count)
        request.deferred.check_may_wait()
        valid, retried, dead = await pops.redeliver(receipts, params.reason_of_each(), policy)
        request.respond(SendMessageBackAnswer(retried=retried, dead=dead), bytes(valid))
        return
    body = bytes(request.frame.body)
    if len(body) != params.count * PHYSICAL_OFFSET_STRUCT.size:
        raise InvalidParameter(
            f"expected {params.count * PHYSICAL_OFFSET_STRUCT.size} bytes of body for {params.count} physical "
            f"offsets, got {len(body)}"
        )
    offsets = [offset for (offset,) in PHYSICAL_OFFSET_STRUCT.iter_unpack(body)]
    messages = FailedMessages(params.group, offsets, policy, params.reason_of_each(), params.epoch)
    retried, dead = await retries.redeliver(request, messages, consumed_by(request))
    request.respond(SendMessageBackAnswer(retried=retried, dead=dead))


def consumed_by(request: Request) -> Callable[[str], bool] | None:
    """Return a predicate: may the user consume messages of this topic? None: all. For any thread."""
    if request.peer.access is None:
        return None
    permissions = request.peer.access.permissions
    return lambda topic: permissions.allows(CONSUME, TOPIC, topic)
