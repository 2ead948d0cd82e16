"""A RocketMQ client at the other end of a connection: the broker's requests to it, in the remoting protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocol import commands
from ...protocol.commands import Command, IdsChangedRequest
from ...protocol.frames import ONE_WAY, REQUEST, REQUEST_ID_MAX
from ...protocol.remoting import codes
from ...protocol.remoting.command import encode_head
from ...protocol.remoting.signature import CREDENTIALS
from ...protocol.storage.ids import offset_id
from ...protocol.storage.record import PROPERTY_UNIQ_KEY, decode_record
from ..delivery.client_handle import Answered
from ..requests.connected_client import ASKED_MAX, ConnectedClient
from ..requests.response_queue import ResponseQueue
from ..security.access import AccessTable


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
        """Note what a heartbeat says about the client."""
        self.language, self.version = language, version
        self.client = f"RocketMQ {language} {version} {client_id}"

    def send_one_way(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request that gets no answer."""
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

    def _send(self, kind: int, code: int, request_id: int, fields: Mapping[str, str], body: bytes) -> None:
        # A client with the signature of another's request could make any other request of the same values with it.
        safe = {name: value for name, value in fields.items() if name not in CREDENTIALS}
        self._responses.send(encode_head(kind, code, request_id, safe, len(body)), body)

    def _next_id(self) -> int:
        # Numbers begin with 1, because 0 means no request.
        self._last_request_id = self._last_request_id % REQUEST_ID_MAX + 1
        return self._last_request_id

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Tell a consumer that the clients of its group have changed."""
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
