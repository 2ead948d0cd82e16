"""Work queues: POP_MESSAGE, ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME. RocketMQ's requests use the same service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...protocol.commands import (
    RECEIPT_STRUCT,
    RECORD_SIZE_STRUCT,
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    PopMessageAnswer,
    PopMessageRequest,
    ReceiptsAnswer,
)
from ...protocol.errors import BrokerError, InvalidParameter, QueueNotExist
from ...protocol.fields import decode_fields
from ...protocol.names import check_client_group
from ...protocol.storage.delivery import RETRY_TOPIC_PREFIX, old_pop_retry_topic, pop_retry_topic
from ..delivery.pop.redelivery import ReturnRule
from ..delivery.pop.table import QueueKey
from .groups import STARTS
from .pop import POP_BYTES_MAX, Pop, PopParams
from .readable import check_has_messages

if TYPE_CHECKING:
    from ..delivery.pop.service import PopService, Receipt
    from ..requests.outlet import Outlet
    from ..requests.request import Request
    from .pop import Popped

NOT_COUNTED = ReturnRule(counts=False)


def pop_message(request: Request, outlet: Outlet, pops: PopService) -> None:
    """Answer a pop with messages, at once or when some arrive."""
    params = decode_fields(PopMessageRequest, request.frame.fields)
    check_client_group(params.group)
    if params.start not in STARTS:
        raise InvalidParameter(f"start must be first, last or time, not {params.start!r}")
    store, groups = outlet.store, outlet.groups
    check_has_messages(store.topics, params.topic)
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
    Pop(request, outlet, pops, wanted, lambda popped, full: _respond(request, wanted, popped)).start()


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
    """Settle messages as handled."""
    params = decode_fields(AckMessageRequest, request.frame.fields)
    _answer(request, pops.settle_all(receipts_in(request, pops, params.group, params.topic, params.count)))


def _answer(request: Request, valid: Sequence[bool]) -> None:
    request.respond(ReceiptsAnswer(sum(valid)), bytes(valid))


def change_message_invisibletime(request: Request, pops: PopService) -> None:
    """Renew leases, or take back messages that no consumer has handled."""
    params = decode_fields(ChangeInvisibleTimeRequest, request.frame.fields)
    receipts = receipts_in(request, pops, params.group, params.topic, params.count)
    if params.lease_ms:
        _answer(request, pops.renew_all(receipts, params.lease_ms))
        return

    def answer(valid: bytes, retried: int, dead: int) -> None:
        request.respond(ReceiptsAnswer(sum(valid)), valid)

    give_back(request, pops, receipts, [""] * len(receipts), NOT_COUNTED, answer)


def give_back(
    request: Request,
    pops: PopService,
    receipts: Sequence[Receipt],
    reasons: Sequence[str],
    rule: ReturnRule,
    answer: Callable[[bytes, int, int], None],
) -> None:
    """Store popped messages again; then call ``answer`` with a byte for each receipt, 1 if it is valid, and the numbers
    of messages to be delivered again and of dead letters."""
    request.deferred.check_may_wait()
    ended: list[tuple[int, int]] = []
    respond = request.later(lambda: answer(bytes(valid), *ended[0]))

    def done(retried: int, dead: int, error: BrokerError | None) -> None:
        ended.append((retried, dead))
        respond(error)

    valid: list[bool] = []
    try:
        valid = pops.give_back(receipts, reasons, rule, done)
    except BrokerError as error:
        respond(error)
        return
    # Then nothing is stored, and the service does not call.
    if not any(valid):
        done(0, 0, None)
