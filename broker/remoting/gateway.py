"""The state that all RocketMQ clients share: names and addresses that routes tell, and the consumers of each group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...protocol import commands
from ...protocol.commands import Command, IdsChangedRequest
from ...protocol.frames import ONE_WAY, REQUEST, REQUEST_ID_MAX, Frame
from ...protocol.remoting import codes
from ...protocol.remoting.command import CREDENTIALS, RemotingFrame, encode_head
from ...protocol.storage.record import PROPERTY_UNIQ_KEY, decode_record, offset_id
from ..addresses import format_address
from ..delivery.client_handle import Answered
from ..net.connection import ClientConnection
from ..requests.broker import Broker, RemotingFigures
from ..requests.connected_client import ASKED_MAX, ConnectedClient, ResponseQueue
from ..security.users import AccessTable
from .figures import SAMPLE_S, TrafficFigures
from .name_server import NameServerRegistrations, NameServerRole, parse_name_servers
from .sends import Stamps, UniqueKeys


class RemotingGateway:
    """The gateway of one broker; belongs to the event loop. ``address``: advertised host and port of its listener."""

    def __init__(self, broker: Broker, address: tuple[str, int]) -> None:
        self.broker_name = broker.settings.server.name
        self.cluster = broker.settings.remoting.cluster
        self.reply_topic = f"{self.cluster}_REPLY_TOPIC"
        """Topic that clients send replies to; they are passed on, not stored."""
        self.address = format_address(*address)
        self.names = NameServerRole(broker, self.cluster, self.broker_name, address)
        self.figures = TrafficFigures(broker.counters, broker.loop.time, broker.store.write_offset)
        name_servers = parse_name_servers(broker.settings.remoting.name_servers)
        self._registrations = NameServerRegistrations(broker, self.names, name_servers)
        self._next_sample: asyncio.TimerHandle | None = None
        self.open_routes = broker.settings.open_routes
        """True if questions for routes need no signature."""
        self._broker = broker
        self.stamps = Stamps(self.cluster)
        self.unique_keys = UniqueKeys()
        self.consumers = broker.groups.clients
        self.connections: set[ClientConnection] = set()
        broker.remoting_figures = self._figures

    def _figures(self) -> RemotingFigures:
        # A copy, because a reader thread collects the figures while the loop continues.
        connections = self.connections.copy()
        held_pulls = sum(len(each.deferred.held_pulls) for each in connections)
        return RemotingFigures(len(connections), held_pulls, *self._registrations.count())

    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set the committed offset of a group, also backwards; ignore it if it is older than a reset by an operator.

        Raises ``GroupKind`` or ``LimitReached``.
        """
        broker = self._broker
        if self.consumers.was_reset(group, (topic, queue)):
            return
        self.consumers.check_may_consume(group)
        broker.groups.check_may_commit(group, ((topic, queue),))
        broker.groups.ensure_group(group)
        broker.store.consumer_offsets.commit(group, topic, queue, offset)

    def start(self) -> None:
        """Sample the traffic, and register with the name servers, from now on."""
        self._sample_later()
        self._registrations.start()

    def _sample_later(self) -> None:
        self._next_sample = self._broker.loop.call_later(SAMPLE_S, self._sample)

    def _sample(self) -> None:
        self.figures.sample()
        self._sample_later()

    async def stop(self) -> None:
        if self._next_sample is not None:
            self._next_sample.cancel()
        await self._registrations.stop()


# ---- A RocketMQ client at the other end of a connection: the broker's requests to it, in the remoting
# protocol.


class ClientAnswer(NamedTuple):
    """A client's response to a request of the broker."""

    code: int
    remark: str
    body: bytes


class RemotingClient(ConnectedClient):
    """One RocketMQ client while it is connected; it implements ``ClientHandle``."""

    __slots__ = ("language", "version")

    def __init__(self, address: tuple[str, int], access: AccessTable, responses: ResponseQueue) -> None:
        super().__init__(address, access, responses)
        self.language = ""
        """The client's language as its heartbeats name it; empty before the first."""
        self.version = 0
        """The client's ``MQVersion``."""

    def introduce(self, client_id: str, language: str, version: int) -> None:
        self.language, self.version = language, version
        self.client = f"RocketMQ {language} {version} {client_id}"

    def send_one_way(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        if not self.lost:
            self._send(ONE_WAY, code, self._next_id(), fields, body)

    def send_request(self, code: int, fields: Mapping[str, str], body: bytes, answered: Answered) -> None:
        """Send a request; call ``answered`` with the response, or with None if none can arrive any more."""
        if self.lost:
            answered(None)
            return
        request_id = self._next_id()
        # The oldest question makes room: a client that never answers must not fill memory.
        if len(self._asked) >= ASKED_MAX:
            self._asked.pop(next(iter(self._asked)))(None)
        self._asked[request_id] = answered
        self._send(REQUEST, code, request_id, fields, body)

    async def asked(self, code: int, fields: Mapping[str, str], body: bytes, timeout_s: float) -> ClientAnswer:
        """Send a request; return the response. Raises ``TimeoutError``, and ``ConnectionError`` if the connection is
        lost before it comes."""
        answer: asyncio.Future[ClientAnswer | None] = asyncio.get_running_loop().create_future()

        def answered(frame: Frame | None) -> None:
            if answer.done():  # it comes too late
                return
            if isinstance(frame, RemotingFrame):
                answer.set_result(ClientAnswer(frame.code, frame.remark, bytes(frame.body)))
            else:
                answer.set_result(None)

        self.send_request(code, fields, body, answered)
        await asyncio.wait([answer], timeout=timeout_s)
        if not answer.done():
            answer.cancel()
            raise TimeoutError
        found = answer.result()
        if found is None:
            raise ConnectionError
        return found

    def _send(self, kind: int, code: int, request_id: int, fields: Mapping[str, str], body: bytes) -> None:
        # A client with the signature of another's request could make any other request of the same values with it.
        safe = {name: value for name, value in fields.items() if name not in CREDENTIALS}
        self._responses.send(encode_head(kind, code, request_id, safe, len(body)), body)

    def _next_id(self) -> int:
        # Numbers begin with 1, because 0 means no request.
        self._last_request_id = self._last_request_id % REQUEST_ID_MAX + 1
        return self._last_request_id

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        assert isinstance(request, IdsChangedRequest), "the only news for clients that share queues"
        self.send_one_way(codes.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": request.group})

    def ask(self, command: Command, request: Any, body: bytes, answered: Answered) -> None:
        """Ask a producer about its transaction. It answers with END_TRANSACTION, so ``answered`` is not called."""
        assert command is commands.CHECK_TRANSACTION_STATE, "the only request of delivery to producers"
        record = decode_record(body)
        unique_key = record.property_map().get(PROPERTY_UNIQ_KEY, "")
        fields = {
            "topic": record.topic.decode(),
            "msgId": unique_key,
            "transactionId": unique_key,
            "offsetMsgId": offset_id(record.store_host, record.physical_offset),
            "commitLogOffset": str(record.physical_offset),
            "tranStateTableOffset": str(record.queue_offset),
        }
        self.send_one_way(codes.CHECK_TRANSACTION_STATE, fields, body)
