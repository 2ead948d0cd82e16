"""Access keys for tests: users that have one, and a connection whose requests are signed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from flintmq.protocol.auth.scram import AccessKey
from flintmq.protocol.auth.users import UserFile, with_access_key
from flintmq.protocol.frames import ONE_WAY, REQUEST
from flintmq.protocol.remoting.command import JSON_HEADER, VERSION, encode_head, signed
from tests.conftest import Brokers
from tests.remoting_tools import RemotingBroker, RemotingSocket, as_text
from tests.security_tools import SCRAM, set_grants

SECRET = "secret-of-all-tests"
ADMIN_GRANT = {"actions": ["admin"], "broker": True}


def key_of(user: str) -> str:
    """Return the name of a user's access key."""
    return f"key-of-{user}"


def set_users_with_keys(store: Path, grants: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Create users with these grants, each with one access key, ``key_of`` its name, and ``SECRET``."""
    set_grants(store, grants)
    file = UserFile(store)
    for name in grants:
        file.change(partial(with_access_key, name=name, access_key=AccessKey(key_of(name), SECRET)))


class SignedSocket(RemotingSocket):
    """A connection that signs each request. ``key``, ``secret``: what it signs with, which may change."""

    def __init__(
        self, address: tuple[str, int], user: str, secret: str = SECRET, header_type: int = JSON_HEADER
    ) -> None:
        super().__init__(address, header_type)
        self.key = key_of(user)
        self.secret = secret

    def send(
        self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"", *, one_way: bool = False
    ) -> int:
        """Send a signed request without waiting for its response; return its opaque number."""
        texts = {name: as_text(value) for name, value in (fields or {}).items()}
        texts = signed(texts, body, VERSION, self.key, self.secret)
        number = next(self._numbers)
        kind = ONE_WAY if one_way else REQUEST
        self.send_bytes(encode_head(kind, code, number, texts, len(body), header_type=self.header_type) + body)
        return number

    def __enter__(self) -> Self:
        return self

    def wait_for_end(self) -> None:
        """Wait until the broker closes the connection; skip what it sends before. Raises ``TimeoutError``."""
        with contextlib.suppress(ConnectionResetError):
            while self._socket.recv(1 << 16):
                pass


@contextmanager
def remoting_broker_with_users(
    folder: Path, grants: Mapping[str, Sequence[dict[str, Any]]], settings: dict[str, Any] | None = None
) -> Iterator[RemotingBroker]:
    """Start a broker whose users have access keys, and stop it at the end."""
    set_users_with_keys(folder / "store", {name: tuple(rows) for name, rows in grants.items()})
    brokers = Brokers(folder)
    more = SCRAM | {"topics.auto_create": True, "log.audit": folder / "audit.log"} | (settings or {})
    yield RemotingBroker(brokers.start, more, store=folder / "store")
    brokers.stop_all()
