"""A request of a RocketMQ client: as ``Request``, with answers in the remoting protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...protocol.commands import ProduceRequest, PullRequest
from ...protocol.errors import (
    BrokerError,
    BrokerFailure,
    InvalidParameter,
    NoPermission,
    OffsetOutOfRange,
    TopicNotExist,
)
from ...protocol.frames import REQUEST, RESPONSE, Frame
from ...protocol.names import is_system_topic
from ...protocol.remoting import codes
from ...protocol.remoting.command import (
    JSON_HEADER,
    REGION,
    RemotingFrame,
    encode_head,
    encode_json,
    encode_send_answer,
)
from ...protocol.storage.record import offset_ids
from ..requests.connected_client import Bytes
from ..requests.request import RESPONSE_HEAD_BYTES_MAX, Request
from ..store import LAYOUT_BATCH, ProduceBatch, PullResult, TopicConfig
from .json_fields import ExtFields
from .results import code_of, remark_of
from .rules import ADMINISTRATIVE, NAMING_FIELDS, audit_refused
from .sends import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES, PROPERTY_REGION, PROPERTY_TRACE

if TYPE_CHECKING:
    from .connection import RemotingConnection
    from .gateway import RemotingGateway

NO_FIELDS = ExtFields({})
PERM_INHERIT = 1
PERM_READ_WRITE = 6
_SIZE_BYTES = 4
MESSAGES_OF_CLIENTS = frozenset({"BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"})
"""System topics that RocketMQ's own tools and traces send to; its brokers have them from the start."""


class RemotingRequest(Request):
    """One request on the event loop. ``received``: its frame; ``frame``: the same, or its translation for FlintMQ.

    ``gateway``: the state of all RocketMQ clients; ``ext``: the request's extension fields; ``asked``: a pull's queue
    offset; ``group``: the group that it reads for, even if that group commits nothing; ``log_begin``: physical offset
    of the log's end when its connection was opened; ``json``: the value in the body of a request that has JSON.

    Of a send: ``flag`` and ``reconsume_times`` of its message; ``passed_times``: properties with a delivery time that
    has passed; ``unique_key`` and ``recall_handle`` that the answer tells; ``default_topic`` and ``default_queues`` for
    creating its topic. ``recalled``: unique key of the message that the request recalls.
    """

    received: RemotingFrame

    __slots__ = (
        "asked",
        "default_queues",
        "default_topic",
        "ext",
        "flag",
        "gateway",
        "group",
        "json",
        "log_begin",
        "passed_times",
        "recall_handle",
        "recalled",
        "reconsume_times",
        "unique_key",
    )

    def __init__(self, source: RemotingConnection, frame: RemotingFrame) -> None:
        super().__init__(source, frame)
        self.gateway: RemotingGateway = source.gateway
        self.ext = ExtFields(frame.fields)
        self.log_begin = source.log_begin
        self.json: Any = None
        self.asked = self.flag = self.reconsume_times = self.default_queues = 0
        self.passed_times = self.group = self.unique_key = self.recall_handle = self.recalled = self.default_topic = ""

    def translate(self, buffer: bytearray) -> None:
        """Let the handlers of FlintMQ see ``buffer`` as the body of the request's frame."""
        received = self.received
        frame = Frame(received.kind, received.code, received.request_id, {}, buffer, 0, len(buffer))
        frame.began = received.began
        self.frame = frame

    def release_frame(self) -> None:
        """Drop the body and the fields of a request that waits: otherwise they would stay in memory with it."""
        received = self.received
        kept = {}
        if received.code in ADMINISTRATIVE:
            kept = {name: received.fields[name] for name in NAMING_FIELDS if name in received.fields}
        super().release_frame()
        received.buffer = self.frame.buffer
        received.fields = self.frame.fields = kept
        self.ext = NO_FIELDS
        self.json = None

    # ---- responding ----

    def reply(
        self,
        fields: Mapping[str, str] | None = None,
        body: Bytes = b"",
        *,
        code: int = codes.SUCCESS,
        remark: str | None = None,
    ) -> None:
        """Respond with a result code, extension fields, a remark and a body; a one-way request gets nothing."""
        if self.frame.kind != REQUEST:
            self.responses.completed(self.frame)
            return
        limit = self.broker.limits.frame_bytes_max
        if len(body) > limit - RESPONSE_HEAD_BYTES_MAX:
            self.fail(BrokerFailure(f"the response has {len(body)} bytes, but limits.frame_bytes_max is {limit}"))
            return
        self.respond_encoded(self._head(code, fields, len(body), remark), body)

    def _head(self, code: int, fields: Mapping[str, str] | None, body_bytes: int, remark: str | None = None) -> bytes:
        return encode_head(
            RESPONSE,
            code,
            self.received.request_id,
            fields,
            body_bytes,
            remark=remark,
            header_type=self.received.header_type,
        )

    def respond(self, answer: Any, body: bytes | bytearray = b"") -> None:
        """Respond with SUCCESS alone: the fields of FlintMQ's response have no meaning for a RocketMQ client."""
        self.reply()

    def encode_stored(self, queue: int, queue_offset: int, store_ms: int, physical_offsets: bytes | bytearray) -> bytes:
        """Return the encoded answer to a send, with the offset ids of the messages separated by commas, or to a
        recall."""
        if self.recalled:
            return self._head(codes.SUCCESS, {"msgId": self.recalled, PROPERTY_REGION: REGION}, 0)
        ids = offset_ids(self.broker.store.commitlog.store_host, physical_offsets)
        if self.received.header_type == JSON_HEADER and not self.recall_handle:
            return encode_send_answer(self.received.request_id, ids, queue, queue_offset, encode_json(self.unique_key))
        fields = {
            "msgId": ids,
            "queueId": str(queue),
            "queueOffset": str(queue_offset),
            "transactionId": self.unique_key,
            PROPERTY_REGION: REGION,
            PROPERTY_TRACE: "true",
        }
        if self.recall_handle:
            fields["recallHandle"] = self.recall_handle
        return self._head(codes.SUCCESS, fields, 0)

    def produce_batch(self, params: ProduceRequest, common: bytes) -> ProduceBatch:
        """Return the messages of a send as the store takes them. Those of a batch that have no key get one."""
        batch = super().produce_batch(params, common + self.passed_times.encode())
        batch.flag, batch.reconsume_times = self.flag, self.reconsume_times
        if params.layout == LAYOUT_BATCH:
            keys = self.gateway.unique_keys
            batch.unique_prefix, batch.unique_first = keys.prefix.encode(), keys.take(params.count)
        return batch

    def queues_to_write(self, topic: TopicConfig) -> int:
        """Return how many queues a client may choose from: also those that are only read while the topic shrinks."""
        return max(topic.write_queues, topic.read_queues)

    def new_topic(self, name: str) -> TopicConfig:
        """Return the topic to create, which inherits from the send's default topic. Raises if that is not allowed."""
        broker = self.broker
        if is_system_topic(name) and name not in MESSAGES_OF_CLIENTS:
            raise NoPermission(f"topic {name} is a system topic of the broker; produce to another topic")
        queues, perm = 0, 0
        if broker.auto_create:
            default = broker.store.topics.get(self.default_topic)
            if default is not None and default.perm & PERM_INHERIT:
                # The new topic is a default for no other one.
                queues, perm = default.write_queues, default.perm & ~PERM_INHERIT
            elif self.default_topic == DEFAULT_TOPIC:
                queues, perm = DEFAULT_TOPIC_QUEUES, PERM_READ_WRITE
        if not perm:
            raise TopicNotExist(
                f"topic[{name}] not exist, apply first please! Create it (mqadmin updateTopic, or flintmq topic "
                f"create), or let sends create it: topics.auto_create, and {DEFAULT_TOPIC} as their default topic"
            )
        # As in RocketMQ, a client may ask for fewer queues than its default topic has, not for more.
        queues = min(self.default_queues, queues)
        if queues < 1:
            raise InvalidParameter(
                f"topic {name} cannot be created with {self.default_queues} queues; set defaultTopicQueueNums to 1 or "
                "more"
            )
        return TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)

    def check_pull(self, params: PullRequest) -> None:
        """Raise if the group has members of FlintMQ's own kind now, or if an operator has reset its offset."""
        clients = self.broker.groups.clients
        clients.check_may_consume(self.group)
        offset = clients.take_reset(self.group, (params.topic, params.queue))
        if offset is not None:
            raise OffsetReset(offset)

    def note_pulled(self, params: PullRequest, pulled: PullResult) -> None:
        """Note and count what a client of the group gets."""
        self.gateway.figures.count_pulled(params.topic, self.group, pulled.count, len(pulled.body))
        group = self.broker.groups.clients.groups.get(params.group)
        if group is not None and (client_id := group.by_remote.get(self.peer)) is not None:
            group.pulled_by[params.topic, params.queue] = client_id
            self.broker.groups.note_pulled(params.group, params.topic, params.queue, pulled.next_offset)

    def respond_pulled(self, pulled: PullResult, lost: tuple[int, int] | None) -> None:
        """Respond to a pull with its records, which are the wire format. Damaged ones are left out, with a remark."""
        # The sizes that precede the records are for FlintMQ's own clients.
        body = memoryview(pulled.body)[_SIZE_BYTES * pulled.count :]
        code, remark = codes.SUCCESS, "FOUND"
        if not pulled.count:
            # If the filter skipped messages, the client continues after them at once.
            passed = pulled.next_offset > self.asked
            code = codes.PULL_RETRY_IMMEDIATELY if passed else codes.PULL_NOT_FOUND
            remark = "NO_MATCHED_MESSAGE" if passed else "OFFSET_OVERFLOW_ONE"
        if lost is not None:
            remark = f"{remark}: {lost[0]} messages from offset {lost[1]} on were lost to damage"
        fields = pull_fields(pulled.next_offset, pulled.min_offset, pulled.max_offset)
        self.respond_encoded(self._head(code, fields, len(body), remark), body)

    def respond_error(self, error: BrokerError) -> None:
        """Send the result code of an error, and its words as the remark."""
        code, remark, fields = code_of(error), remark_of(error), None
        if isinstance(error, OffsetOutOfRange):
            fields, remark = _moved(self.asked, error.min_offset, error.max_offset)
        elif isinstance(error, OffsetReset):
            fields, remark = pull_fields(error.offset, 0, error.offset), "OFFSET_RESET"
        self.responses.send(self._head(code, fields, 0, remark))

    def command_name(self) -> str:
        """Return the code of RocketMQ's request, for the log."""
        return f"request {self.frame.code}"

    def audit_refused(self, error: BrokerError) -> None:
        """Record that a request of an administrator was refused."""
        audit_refused(self, error)


class OffsetReset(BrokerError):
    """An operator has reset the group's offset since its last pull of the queue, to ``offset``."""

    code, name, retriable = codes.PULL_OFFSET_MOVED, "OFFSET_RESET", True

    def __init__(self, offset: int) -> None:
        super().__init__(f"the offset was reset to {offset}")
        self.offset = offset


def pull_fields(next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    """Return the extension fields of the answer to a pull."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


def _moved(asked: int, low: int, high: int) -> tuple[dict[str, str], str]:
    """Return fields and remark of the answer to a pull outside of its queue, as ``DefaultMessageStore.getMessage``."""
    if high == 0:
        return pull_fields(0, low, high), "NO_MESSAGE_IN_QUEUE"
    if asked < low:
        return pull_fields(low, low, high), "OFFSET_TOO_SMALL"
    return pull_fields(high, low, high), "OFFSET_OVERFLOW_BADLY"
