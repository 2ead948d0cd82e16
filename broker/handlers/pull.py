"""PULL: return stored records of one queue, or hold the pull until there are some."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ...protocol.auth.permissions import CONSUME, GROUP, TOPIC, Need
from ...protocol.commands import PullRequest, RecordsAnswer
from ...protocol.errors import (
    PULL_NOT_FOUND,
    SUCCESS,
    BrokerFailure,
    InvalidParameter,
    MessageDamaged,
    OffsetOutOfRange,
)
from ...protocol.fields import decode_fields, encode_fields
from ...protocol.frames import RESPONSE, encode_head, encode_records_head
from ...protocol.names import check_client_group
from ...protocol.storage.javahash import tags_code
from ...protocol.storage.layout import RECORD_BYTES_MIN
from ..background.held_pulls import PASSED_OVER_S, Wake
from ..filters import compile_filter
from ..memo import remembered
from ..store import CorruptLog, DamagedRecord, PullResult, PullSelection, WouldBlock

if TYPE_CHECKING:
    from ...protocol.errors import BrokerError
    from ..background.held_pulls import HeldPull, Share
    from ..filters import Filter
    from ..replication.member.replica_member import ReplicaMember
    from ..requests.broker import Broker
    from ..requests.request import Request
    from ..store.queues import ConsumeQueue


HEAD_BYTES_MAX = 1024
"""Upper bound for the part of a pull response before its sizes and records."""
SIZE_BYTES = 4
HOT_BYTES_MAX = 2 * 1024 * 1024
HOT_COUNT_MAX = 4
"""A pull for more than ``HOT_BYTES_MAX`` runs in a reader thread if more than ``HOT_COUNT_MAX`` messages exist: copying
16 MiB on the loop would block all connections for 10 ms."""
SHARED_BYTES_MAX = 2 * 1024 * 1024
"""Maximum bytes of a response while other connections are active: writing 16 MiB to a socket blocks the loop for
milliseconds. The client continues with its next pull."""
PARSED_AT_ONCE_CHARS = 512
"""Longer tags and filters are parsed in a step of their own, between the requests of other connections."""
FILTER_STEPS_MAX = 16
"""Maximum number of search steps of a filtered pull that has found something."""

_NO_BODY = bytearray()

log = logging.getLogger(__name__)


class PullContext:
    """The part of a pull that depends on the protocol: FlintMQ's own, and the base for the gateway's."""

    __slots__ = ()

    def check(self, request: Request, params: PullRequest) -> None:
        """Raise if the client may not read the queue for the group, or no longer: a pull may have waited."""
        if params.member:
            request.broker.groups.check_holder(params.group, params.member, params.epoch, params.topic, params.queue)

    def note(self, request: Request, params: PullRequest, pulled: PullResult) -> None:
        """Note what a member of the group gets."""
        if params.member:
            request.broker.groups.note_pulled(params.group, params.topic, params.queue, pulled.next_offset)

    def out_of_range(self, offset: int, error: OffsetOutOfRange) -> BrokerError:
        """Return the error of a pull from ``offset``, which is outside of its queue."""
        return error

    def respond(self, request: Request, pulled: PullResult, lost: tuple[int, int] | None) -> None:
        """Respond to a pull. ``lost``: number of messages that damage took from its range, and the first's offset."""
        code, body, request_id = pulled.code, pulled.body, request.frame.request_id
        numbers = pulled.count, pulled.next_offset, pulled.min_offset, pulled.max_offset
        if lost is None:
            head = encode_records_head(code, request_id, *numbers, len(body))
        else:
            head = encode_head(RESPONSE, code, request_id, encode_fields(RecordsAnswer(*numbers, *lost)), len(body))
        request.respond_encoded(head, body)


NATIVE = PullContext()


def pull(request: Request, broker: Broker, member: ReplicaMember | None) -> None:
    """Answer a pull from memory, pass it to a reader thread, or hold it."""
    params = decode_fields(PullRequest, request.frame.fields)
    _check(request, broker, params, NATIVE)
    if member is None and not (params.tags or params.filter):  # a member of a replica set may become a follower
        request.source.repeated.keep_pull(request, params)
    _begin(request, broker, params, NATIVE)


def pull_records(request: Request, broker: Broker, params: PullRequest, context: PullContext) -> None:
    """Answer a decoded pull from memory, pass it to a reader thread, or hold it."""
    _check(request, broker, params, context)
    _begin(request, broker, params, context)


def pull_again(request: Request, broker: Broker, params: PullRequest) -> None:
    """Answer a pull without tags or a filter that differs from an accepted one only in its offset."""

    def accept() -> None:
        NATIVE.check(request, params)  # the member may have lost the queue
        _plan(request, broker, params, NATIVE)

    request.attempt(accept)


def _check(request: Request, broker: Broker, params: PullRequest, context: PullContext) -> None:
    broker.store.topics.check_has_messages(params.topic)
    context.check(request, params)
    if params.group and not params.member:
        check_client_group(params.group)


def _begin(request: Request, broker: Broker, params: PullRequest, context: PullContext) -> None:
    if len(params.tags) + len(params.filter) > PARSED_AT_ONCE_CHARS:
        # Parsing takes up to 2 ms. Each connection may send such a pull in the same turn of the loop, and together
        # they would block all others.
        request.deferred.check_may_wait()
        request.step(lambda: _plan(request, broker, params, context))
    else:
        _plan(request, broker, params, context)


def _plan(request: Request, broker: Broker, params: PullRequest, context: PullContext) -> None:
    """Parse the tags and the filter of a pull; answer it, let it search, or hold it."""
    tags = parse_tags(params.tags) if params.tags else None
    records = compile_filter(params.filter) if params.filter else None
    room = broker.limits.frame_bytes_max - HEAD_BYTES_MAX
    # Each record is preceded by its size, so the shortest records are the worst case.
    params.max_bytes = min(params.max_bytes, room * RECORD_BYTES_MIN // (RECORD_BYTES_MIN + SIZE_BYTES))
    params.max_count = min(params.max_count, room // (RECORD_BYTES_MIN + SIZE_BYTES))
    broker.dispatch.is_done()  # called because it dispatches what is due
    reads = broker.store.queue_reads
    queue = reads.queue(params.topic, params.queue)
    ahead = params.offset - reads.end_of(params.topic, params.queue, queue)
    # A pull that does not wait must see everything acknowledged. Without a selection that matters only at the queue's
    # end; a pull that selects may reach the end although it starts long before it.
    selects = tags is not None or records is not None
    if ahead == 0 and params.wait_ms and records is None:
        PendingPull(request, params, context, tags).hold()  # the usual case of a consumer that has read everything
    elif ahead > 0 or (not params.wait_ms and (ahead == 0 or selects)):
        request.after_dispatch(lambda: _answer_or_search(request, params, context, tags, records))
    else:
        _answer_or_search(request, params, context, tags, records, queue)


def _answer_or_search(
    request: Request,
    params: PullRequest,
    context: PullContext,
    tags: frozenset[int] | None,
    records: Filter | None,
    queue: ConsumeQueue | None = None,
) -> None:
    """Answer a pull from memory, or read for it later. ``queue``: the queue, if it was looked up in this turn."""
    broker = request.broker
    if records is not None:
        filtered = FilteredPull(request, params, context, tags, records)
        request.deferred.check_may_wait()
        filtered.next_step()
        return
    queue = queue or broker.store.queue_reads.queue(params.topic, params.queue)
    if not broker.send_memory.may_read(request.responses) or _is_large(broker, params, params.offset, queue):
        PendingPull(request, params, context, tags).read()
        return
    try:
        selection = PullSelection(params.max_count, params.max_bytes, tags)
        pulled = _read(broker, params, context, params.offset, selection, hot=True, queue=queue)
    except WouldBlock:
        PendingPull(request, params, context, tags).read()
        return
    if pulled.code == PULL_NOT_FOUND and params.wait_ms:
        PendingPull(request, params, context, tags).pulled(pulled)
    else:
        send_pulled(request, params, context, pulled)


def _read(
    broker: Broker,
    params: PullRequest,
    context: PullContext,
    offset: int,
    selection: PullSelection,
    hot: bool,
    queue: ConsumeQueue | None,
) -> PullResult:
    """Read records as ``Pulls.pull`` does, as many as memory allows; move a group that asks for expired messages."""
    bytes_max = broker.send_memory.answer_bytes()
    if selection.max_bytes > SHARED_BYTES_MAX and broker.dispatch.sharing.is_shared(time.monotonic()):
        bytes_max = min(bytes_max, SHARED_BYTES_MAX)
    if bytes_max < selection.max_bytes:
        selection = selection._replace(max_bytes=bytes_max)
    try:
        return broker.store.pulls.pull(params.topic, params.queue, offset, selection, hot=hot, queue=queue)
    except OffsetOutOfRange as error:
        if offset > error.max_offset and broker.follows():
            # Another member showed more of the queue, which this follower will have soon.
            return PullResult(PULL_NOT_FOUND, 0, offset, error.min_offset, error.max_offset, _NO_BODY)
        if params.group and offset < error.min_offset:
            moved = (params.group, params.member, params.topic, params.queue, offset, error.min_offset)
            if hot:
                broker.offset_mover.move(*moved)
            else:  # in a reader thread; groups belong to the loop
                broker.loop.call_soon_threadsafe(broker.offset_mover.move, *moved)
        raise context.out_of_range(offset, error) from None
    except DamagedRecord as error:
        log.error("%s", error)
        raise MessageDamaged(str(error), queue_offset=error.queue_offset) from error
    except CorruptLog as error:
        log.error("%s", error)
        raise BrokerFailure(str(error)) from error


def _is_large(broker: Broker, params: PullRequest, offset: int, queue: ConsumeQueue | None) -> bool:
    """Return whether the response may be too large to be read on the loop."""
    if params.max_bytes <= HOT_BYTES_MAX or params.max_count <= HOT_COUNT_MAX:
        return False
    return broker.store.queue_reads.end_of(params.topic, params.queue, queue) - offset > HOT_COUNT_MAX


@remembered(1024)
def parse_tags(expression: str) -> frozenset[int] | None:
    """Return the tag codes of ``a || b``, or None for all messages (``*``)."""
    tags = [tag.strip() for tag in expression.split("||")]
    if tags == ["*"]:
        return None
    if not all(tags):
        raise InvalidParameter(f"tags {expression!r} contains an empty tag; use `a || b`, or * for all")
    return frozenset(tags_code(tag) for tag in tags)


def send_pulled(request: Request, params: PullRequest, context: PullContext, pulled: PullResult) -> None:
    broker = request.broker
    if len(pulled.body) + HEAD_BYTES_MAX > broker.limits.frame_bytes_max:
        raise BrokerFailure(
            f"the record is too large for a response: {len(pulled.body)} bytes; raise limits.frame_bytes_max, "
            f"which is {broker.limits.frame_bytes_max}"
        )
    context.note(request, params, pulled)
    _count(broker, params, pulled.count, len(pulled.body))
    lost = _lost(broker, params, pulled.next_offset) if broker.store.quarantine else None
    context.respond(request, pulled, lost)


def _count(broker: Broker, params: PullRequest, messages: int, body_bytes: int) -> None:
    traffic = broker.counters.pulled.of(params.topic)
    traffic.frames += 1
    traffic.messages += messages
    traffic.bytes += body_bytes


def _lost(broker: Broker, params: PullRequest, next_offset: int) -> tuple[int, int] | None:
    """Return the number of lost messages in the range of a pull and the offset of the first, or None."""
    lost = broker.store.quarantine.lost_between(params.topic, params.queue, params.offset, next_offset)
    return (sum(end - first for first, end in lost), lost[0][0]) if lost else None


class PendingPull:
    """A pull that could not be answered at once. Its offset advances while no message matches its tags."""

    __slots__ = ("broker", "busy_s", "context", "deadline", "held", "offset", "params", "request", "share", "tags")

    def __init__(
        self,
        request: Request,
        params: PullRequest,
        context: PullContext,
        tags: frozenset[int] | None,
        records: Filter | None = None,
    ) -> None:
        broker = request.broker
        # A waiting frame must not keep the receive buffer alive, nor memory for unknown fields that the client sent.
        request.frame.buffer, request.frame.fields = _NO_BODY, {}
        self.share: Share | None = None
        """Its share of its tags and filter; None if it has neither."""
        if tags is not None or records is not None:
            selection = broker.selections.share(tags, records)
            # From here on the pull refers only to the shared selection, whose memory is counted.
            self.share, tags = request.deferred.share(selection), selection.tags
            params.tags = params.filter = ""
        self.request = request
        self.broker = broker
        self.params = params
        self.context = context
        self.tags = tags
        self.offset = params.offset
        self.deadline = broker.loop.time() + params.wait_ms / 1000
        self.held: HeldPull | None = None
        self.busy_s = 0.0
        """Time that the broker had spent on the pull when it was held."""

    def read(self) -> None:
        self.request.read_then(self._read, self.pulled)

    def _read(self, hot: bool) -> PullResult:
        broker, params = self.broker, self.params
        queue = None
        if hot:
            # On the loop only: in a reader thread, which comes right after, the tables of rights and groups may change.
            self._check_again()
            queue = broker.store.queue_reads.queue(params.topic, params.queue)
            if _is_large(broker, params, self.offset, queue):
                raise WouldBlock
        selection = PullSelection(params.max_count, params.max_bytes, self.tags)
        return _read(broker, params, self.context, self.offset, selection, hot, queue)

    def _check_again(self) -> None:
        """Check the preconditions again, which may have changed while the pull waited."""
        if self.request.peer.access is not None:
            self.request.peer.access.check(Need((CONSUME,), TOPIC, self.params.topic))
            if self.params.group:
                self.request.peer.access.check(Need((CONSUME,), GROUP, self.params.group))
        self.broker.store.topics.check_readable(self.params.topic)
        self.context.check(self.request, self.params)

    def pulled(self, pulled: PullResult) -> None:
        """Respond, or hold the pull if nothing was found and there is time left."""
        broker, params = self.broker, self.params
        if pulled.code != PULL_NOT_FOUND or broker.loop.time() >= self.deadline:
            send_pulled(self.request, params, self.context, pulled)
            return
        self.offset = max(self.offset, pulled.next_offset)
        if params.group and self.offset > params.offset:
            # Skipped messages are progress, which the member can commit only after a response tells it.
            self.deadline = min(self.deadline, broker.loop.time() + PASSED_OVER_S)
        if broker.store.queue_reads.max_offset(params.topic, params.queue) > self.offset:
            # Messages arrived while a reader thread searched.
            self.look_again()
            return
        self.hold()

    def hold(self) -> None:
        """Wait for a message at the offset, which is the queue's end."""
        broker, params = self.broker, self.params
        self.request.deferred.check_may_wait()
        self.busy_s = time.monotonic() - self.request.frame.began
        self.held = broker.holds.hold(
            params.topic,
            params.queue,
            self.offset,
            self.deadline,
            self._woken,
            tags=self.tags,
            grouped=bool(params.group),
            of_many=self.request.deferred.holds_many(),
        )
        if self.share is None:
            self.held.take = self._take
        self.request.deferred.held_pulls.add(self.held)
        # A member of a group may lose the queue meanwhile, and a member of a set its lead; TLS is the transport's.
        is_plain = self.context is NATIVE and self.share is None and not params.member
        if is_plain and broker.short_sends is not None and broker.member is None and broker.tls is None:
            broker.short_sends.pulls.hold(self, self.held, self.request.responses, self.request.frame.request_id)
        broker.dispatch.hurry()

    def look_again(self) -> None:
        """Read again in the loop's next turn."""
        self.broker.loop.call_soon(self.read)

    def _woken(self, wake: Wake) -> None:
        assert self.held is not None
        self.request.deferred.held_pulls.discard(self.held)
        if wake is not Wake.ARRIVED:
            # Its time is over, so ``pulled`` must respond instead of holding it again.
            self.deadline = 0.0
        if self.request.responses.paused:
            self.request.deferred.waiting.append(self._resume)
        else:
            self._resume()

    def _resume(self) -> None:
        self.request.frame.began = time.monotonic() - self.busy_s
        self.request.attempt(self._answer_newest)
        self.request.deferred.on_progress()

    def _take(self, pulled: PullResult) -> None:
        """Respond with the message that the pull has waited for, which was read for it."""
        self.request.deferred.held_pulls.discard(self.held)
        if self.request.responses.paused:
            self.request.deferred.waiting.append(self._resume)
            return
        self.request.frame.began = time.monotonic() - self.busy_s
        self.request.attempt(lambda: self._answer(pulled))
        self.request.deferred.on_progress()

    def given(self, record: memoryview, min_offset: int, sent: int) -> None:
        """Take note of the response with a record, of which the socket took ``sent`` bytes; send the rest."""
        request, next_offset, body_bytes = self.request, self.offset + 1, SIZE_BYTES + len(record)
        request.deferred.held_pulls.discard(self.held)
        request.frame.began = time.monotonic() - self.busy_s
        _count(self.broker, self.params, 1, body_bytes)
        head = encode_records_head(
            SUCCESS, request.frame.request_id, 1, next_offset, min_offset, next_offset, body_bytes
        )
        request.responses.bytes_out += sent
        if sent < len(head) + body_bytes:
            request.responses.send((head + len(record).to_bytes(SIZE_BYTES, "big") + record)[sent:])
        request.responses.completed(request.frame)
        request.deferred.on_progress()

    def _answer_newest(self) -> None:
        """Respond with the message that the pull has waited for, if it is a single small one; else read on."""
        params = self.params
        newest = None
        if self.tags is None:
            newest = self.broker.store.pulls.newest(params.topic, params.queue, self.offset)
        self._answer(newest)

    def _answer(self, pulled: PullResult | None) -> None:
        """Respond with a single message, if there is room in memory and in the response; else read on."""
        request, params = self.request, self.params
        if (
            pulled is None
            or len(pulled.body) > params.max_bytes
            or not self.broker.send_memory.may_read(request.responses)
        ):
            self.read()
            return
        self._check_again()
        send_pulled(request, params, self.context, pulled)


class FilteredPull(PendingPull):
    """A pull with a filter: each step examines a few hundred records, and one response returns all matches."""

    __slots__ = ("bytes_left", "count_left", "found", "found_bytes", "records", "steps")

    def __init__(
        self, request: Request, params: PullRequest, context: PullContext, tags: frozenset[int] | None, records: Filter
    ) -> None:
        super().__init__(request, params, context, tags, records)
        assert self.share is not None
        self.records = self.share.selection.records
        self.found: list[PullResult] = []
        self.found_bytes = 0
        self.count_left = params.max_count
        self.bytes_left = params.max_bytes
        self.steps = 0

    def next_step(self) -> None:
        """Examine the next records when it is this pull's turn."""
        self.request.step(self.read, self._send_found if self.found else None)

    def read(self) -> None:
        self.request.read_then(self._read, self.pulled, self._send_found if self.found else None)

    def look_again(self) -> None:
        self.next_step()

    def _read(self, hot: bool) -> PullResult:
        if hot:
            self._check_again()
        selection = PullSelection(self.count_left, self.bytes_left, self.tags, self.records, not self.found)
        return _read(self.broker, self.params, self.context, self.offset, selection, hot, None)

    def pulled(self, pulled: PullResult) -> None:
        """Continue the search, return the matches, or hold the pull if there are none and time is left."""
        self.steps += 1
        previous_offset = self.offset
        self.offset = pulled.next_offset
        size = 0
        if pulled.count:
            self.found.append(pulled)
            self.found_bytes += len(pulled.body)
            size = len(pulled.body) - SIZE_BYTES * pulled.count
            self.count_left -= pulled.count
            self.bytes_left -= size
        # Stop if a record of the average size of the last ones would not fit, or if the next record did not: then the
        # step made no progress.
        full = self.count_left <= 0 or self.bytes_left * pulled.count < size or self.offset == previous_offset
        full |= self.found_bytes > self._share_bytes()
        if self.offset < pulled.max_offset and not full and self.steps < FILTER_STEPS_MAX:
            self.next_step()
        elif self.found:
            self._send_found()
        else:
            self.steps = 0
            super().pulled(pulled)

    def _share_bytes(self) -> int:
        """Return how many bytes may be found before they are sent.

        The send budget does not count them before that, so all pulls in progress share the size of one response.
        """
        broker = self.broker
        return broker.send_memory.answer_bytes() // (1 + len(broker.holds.turns) + len(broker.cold_reads))

    def _send_found(self) -> None:
        send_pulled(self.request, self.params, self.context, _together(self.found, self.offset))

    def _resume(self) -> None:
        self.request.frame.began = time.monotonic() - self.busy_s
        self.next_step()


def _together(found: list[PullResult], next_offset: int) -> PullResult:
    """Combine the results of several steps into one response."""
    last = found[-1]
    if len(found) == 1:
        body = last.body
    else:
        body = bytearray().join([each.body[: SIZE_BYTES * each.count] for each in found])
        for each in found:
            body += memoryview(each.body)[SIZE_BYTES * each.count :]
    count = sum(each.count for each in found)
    return PullResult(SUCCESS, count, next_offset, last.min_offset, last.max_offset, body)
