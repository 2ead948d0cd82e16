"""A RocketMQ client's connection: ``ClientConnection`` with remoting frames instead of FlintMQ's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from ...protocol.errors import AuthenticationRequired, BrokerError, UnknownCommand
from ...protocol.frames import RESPONSE, Frame
from ...protocol.remoting.command import RemotingFrame, decode_frame, encode_head
from ..budgets.receive_buffers import SharingParser
from ..net.connection import ClientConnection
from ..requests.broker import Broker
from .client import RemotingClient
from .registry import HANDLERS, HANDLERS_OF_USERS
from .request import RemotingRequest
from .results import code_of, remark_of

if TYPE_CHECKING:
    from .gateway import RemotingGateway

log = logging.getLogger(__name__)

NO_KEY = (
    "this broker has users, and the request carries no AccessKey: give the client an access key (an AclClientRPCHook, "
    "or credentials in its settings); `flintmq user key add USER` makes one"
)


class RemotingParser(SharingParser):
    """Turns received bytes into remoting frames."""

    __slots__ = ()

    def next_frame(self) -> RemotingFrame | None:
        """Return the next complete frame, or None until more bytes arrive. Raises ``RemoteProtocolError``."""
        start, pending = self.start, self.end - self.start
        if pending < 4:
            return None
        frame_length = int.from_bytes(self.buffer[start : start + 4], "big")
        self._check_frame_length(frame_length)
        frame_end = start + 4 + frame_length
        if frame_end > self.end:
            return None
        frame = decode_frame(self.buffer, start, frame_end)
        self.start = frame_end
        return frame


class RemotingConnection(ClientConnection):
    """An accepted connection of a RocketMQ client. ``gateway``: the state of all of them."""

    __slots__ = ("gateway", "handlers_by_code", "header_type", "log_begin")

    CLIENT: ClassVar[type[RemotingClient]] = RemotingClient
    PARSER: ClassVar[type[RemotingParser]] = RemotingParser

    def __init__(
        self,
        broker: Broker,
        address: tuple[str, int],
        on_lost: Callable[[ClientConnection], None],
        gateway: RemotingGateway,
    ) -> None:
        super().__init__(broker, address, on_lost)
        self.gateway = gateway
        self.log_begin = broker.store.write_offset
        """Physical offset of the log's end when the connection was opened: older messages came by others."""
        self.handlers_by_code = HANDLERS if broker.authenticator is None else HANDLERS_OF_USERS
        self.header_type = 0
        """Type of the header of the last request, for errors that answer none in particular."""

    def encode_error(self, error: BrokerError, request_id: int) -> bytes:
        """Return the encoded error response to a request; 0 if it answers none."""
        return encode_refusal(error, request_id, self.header_type)

    def handle(self, frame: Frame) -> None:
        """Call the handler of a request, and respond with the error that it raises."""
        assert isinstance(frame, RemotingFrame), "frames of this connection's parser"
        if frame.kind == RESPONSE:
            if not self.peer.response_arrived(frame):
                log.debug("unexpected response to request %d", frame.request_id)
            return
        self.header_type = frame.header_type
        request = RemotingRequest(self, frame)
        try:
            handler = self.handlers_by_code.get(frame.code)
            if handler is None:
                raise UnknownCommand(f" request type {frame.code} not supported")
            if self.broker.authenticator is not None and self.peer.user is None:
                raise AuthenticationRequired(NO_KEY)
            handler(request)
        except BrokerError as error:
            request.fail(error)
        except Exception as error:  # noqa: BLE001 - one request must not take its connection, or the broker, down
            request.fail_unexpectedly(error)


def encode_refusal(error: BrokerError, opaque: int, header_type: int = 0) -> bytes:
    """Return an encoded response that carries an error."""
    return encode_head(RESPONSE, code_of(error), opaque, None, 0, remark=remark_of(error), header_type=header_type)
