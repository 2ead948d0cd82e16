"""The client at the other end of a connection: its identity and permissions, and the broker's requests to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...protocol.auth.permissions import GROUP, PUBLISH, TOPIC
from ...protocol.errors import InvalidParameter
from ...protocol.fields import encode_fields
from ...protocol.frames import ONE_WAY, REQUEST, REQUEST_ID_MAX, encode_head
from ...protocol.storage.record import encode_host

if TYPE_CHECKING:
    from ...protocol.auth.scram import ServerExchange
    from ...protocol.commands import Command
    from ...protocol.frames import Frame
    from ..delivery.client_handle import Answered
    from ..security.access import AccessTable, UserRights
    from ..security.users import User
    from .response_queue import ResponseQueue

TELL_MAX = 100
"""Maximum number of callbacks for the loss of one connection. Most are group members, which take memory."""
KEPT_BYTES_MAX = 4 * 1024 * 1024
"""Maximum memory of the subscriptions of all group members of one connection."""
ASKED_MAX = 1_024
"""Maximum number of unanswered requests to one client; a further request drops the oldest."""


class ConnectedClient:
    """One client while it is connected; it implements ``ClientHandle``."""

    __slots__ = tuple(
        (
            "_access_table _asked _kept_bytes _last_request_id _responses _user _when_lost access address born_host "
            "client exchange follower lost reads_any"
        ).split()
    )

    def __init__(self, address: tuple[str, int], access: AccessTable, responses: ResponseQueue) -> None:
        self.address = address
        self.born_host = encode_host(*address)
        """Address and port of the client, encoded as in a record."""
        self.client = ""
        """The name that it introduced itself with."""
        self.exchange: ServerExchange | None = None
        """The authentication in progress."""
        self._user: User | None = None
        self._access_table = access
        self.access: UserRights | None = None
        """Permissions of ``user``; None if there is no user, and then the client has full access."""
        self._responses = responses
        self.lost = False
        """True once the connection is closed; results that arrive later are dropped."""
        self.follower = 0
        """Number of this connection among those of the primary's followers; 0: it follows nothing."""
        self.reads_any = False
        """True if a follower of a replica set may answer this client's reads."""
        self._asked: dict[int, Answered] = {}
        self._last_request_id = 0
        self._when_lost: dict[object, Callable[[], None]] = {}
        self._kept_bytes = 0

    @property
    def user(self) -> User | None:
        """The authenticated user; None before authentication, or if the broker requires none."""
        return self._user

    @user.setter
    def user(self, user: User | None) -> None:
        self._user = user
        self.access = self._access_table.of(user.name, user.permissions) if user is not None else None

    @property
    def user_name(self) -> str:
        """Name of the user; empty if there is none."""
        return self._user.name if self._user is not None else ""

    def may_publish(self, topic: str, group: str = "") -> bool:
        """Return whether the client may publish to ``topic``, as a producer of ``group`` if one is given."""
        access = self.access
        return access is None or (
            access.allows(PUBLISH, TOPIC, topic) and (not group or access.allows(PUBLISH, GROUP, group))
        )

    def may_be_sent(self) -> bool:
        """Return whether the client reads what it is sent; for one that does not, more would only fill memory."""
        return not self.lost and self._responses.takes_more()

    def tell(self, command: Command, request: Any, body: bytes | bytearray = b"") -> None:
        """Send a one-way frame to the client."""
        if not self.lost:
            self._responses.send(encode_head(ONE_WAY, command.code, 0, encode_fields(request), len(body)), body)

    def unsent_bytes(self) -> int:
        """Return the number of bytes for the client that wait here because it does not take them."""
        return self._responses.out_bytes + self._responses.unsent_bytes()

    def ask(self, command: Command, request: Any, body: bytes, answered: Answered) -> None:
        """Send a request; call ``answered`` with the response, or with None if none can arrive any more."""
        if self.lost:
            answered(None)
            return
        # From 1 on, because 0 is the id of one-way frames.
        self._last_request_id = request_id = self._last_request_id % REQUEST_ID_MAX + 1
        if len(self._asked) >= ASKED_MAX:
            self._asked.pop(next(iter(self._asked)))(None)
        self._asked[request_id] = answered
        self._responses.send(encode_head(REQUEST, command.code, request_id, encode_fields(request), len(body)), body)

    def response_arrived(self, frame: Frame) -> bool:
        """Pass a response to the caller that waits for it; return False if no caller does."""
        answered = self._asked.pop(frame.request_id, None)
        if answered is None:
            return False
        answered(frame)
        return True

    def when_lost(self, call: Callable[[], None], kept_bytes: int = 0) -> Callable[[], None]:
        """Call ``call`` once the connection is closed; return a function that cancels this.

        ``kept_bytes``: memory of what is kept for the client until then. Raises ``InvalidParameter`` if the connection
        has too many callbacks, or if too much is kept for it.
        """
        token = object()
        if self.lost:
            call()
        elif len(self._when_lost) >= TELL_MAX:
            raise InvalidParameter(
                f"one connection can carry at most {TELL_MAX} group members, consumers and producers together; open "
                "another connection for more"
            )
        elif kept_bytes and self._kept_bytes + kept_bytes > KEPT_BYTES_MAX:
            raise InvalidParameter(
                f"the subscriptions of the group members on one connection can take at most {KEPT_BYTES_MAX:,} bytes "
                f"together; they take {self._kept_bytes:,}, and this member's {kept_bytes:,}. Subscribe to less, or "
                "open another connection for more members"
            )
        else:
            self._when_lost[token] = call
            self._kept_bytes += kept_bytes

        def cancel() -> None:
            if self._when_lost.pop(token, None) is not None:
                self._kept_bytes -= kept_bytes

        return cancel

    def disconnected(self) -> None:
        """Call all callbacks that wait for a response or for the loss of the connection."""
        # One by one, because a callback may cancel others.
        while self._asked:
            self._asked.pop(next(iter(self._asked)))(None)
        while self._when_lost:
            self._when_lost.pop(next(iter(self._when_lost)))()
