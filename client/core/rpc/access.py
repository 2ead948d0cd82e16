"""How a client identifies itself, authenticates and encrypts: user, password and TLS.

Modules for authentication and TLS are imported only if they are used: a client without a user and TLS needs only
msgpack.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ....protocol.commands import READ_FROM_ANY
from ....protocol.errors import AuthenticationFailed
from ...application_code import ends_program
from ...errors import InvalidArgument, InvalidArgumentType
from ..texts import check_unicode

if TYPE_CHECKING:
    import ssl

    from ....protocol.auth.scram import ClientExchange, Keys

KEYS_KEPT = 16
"""Maximum number of derived keys to keep, so that only the first connection with a broker and a password derives
them."""

CLIENT_NAME_CHARS_MAX = 256
"""Maximum length of a client's name: the rule of HELLO's field ``client``."""

Password = str | Callable[[], str]
ReadFrom = Literal["primary", "any"]


class AccessOptions(TypedDict, total=False):
    """Access options that every client accepts.

    ``user``, ``password``: the credentials; the password is a string, or a function that returns it and is called for
    each new connection (by an asyncio client in a thread). ``tls``: True for TLS with the CAs that this machine trusts,
    the path of a PEM file with the CA of the broker's certificate, or an ``ssl.SSLContext``. ``tls_certificate`` and
    ``tls_key``: paths of this client's certificate and key, if the broker requires one (the key may be in the
    certificate's file). ``client_name``: the name that the broker shows in its list of connections, at most 256
    characters; by default the program, its process id and the host.
    """

    user: str | None
    password: Password | None
    tls: bool | str | os.PathLike[str] | ssl.SSLContext | None
    tls_certificate: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    client_name: str | None


@dataclass(frozen=True)
class ClientAccess:
    """The checked options. Comparable and, if the options are, picklable; its repr hides the password."""

    user: str = ""
    password: Password = field(default="", repr=False)
    tls: bool | str | ssl.SSLContext = False
    tls_certificate: str = ""
    tls_key: str = ""
    client_name: str = ""
    read_from: str = ""
    """``any``: a follower of a replica set may answer reads; empty: only the primary does."""
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.user, self.password, self.tls, self.tls_certificate, self.tls_key, self.client_name
        return ClientAccess, (*fields, self.read_from)

    @property
    def options(self) -> AccessOptions:
        """The arguments for another client with the same access."""
        if self is NO_ACCESS or self == NO_ACCESS:
            return {}
        options: AccessOptions = {"tls": self.tls}
        if self.user:
            options |= {"user": self.user, "password": self.password}
        if self.tls_certificate:
            options["tls_certificate"] = self.tls_certificate
        if self.tls_key:
            options["tls_key"] = self.tls_key
        if self.client_name:
            options["client_name"] = self.client_name
        return options

    def context(self) -> ssl.SSLContext | None:
        """Return the context for TLS connections; None: without TLS. Raises ``InvalidArgument`` if a file cannot be
        used. Replaced files are loaded again, because client certificates often last only hours."""
        if self.tls is False:
            return None
        if not isinstance(self.tls, bool | str):
            return self.tls
        from .tls import context_of, stats_of

        seen = stats_of(self.tls, self.tls_certificate, self.tls_key)
        kept: tuple[object, ssl.SSLContext] | None = self._kept.get("context")
        if kept is not None and kept[0] == seen:
            return kept[1]
        try:
            context = context_of(self.tls, self.tls_certificate, self.tls_key)
        except InvalidArgument:
            if kept is None:
                raise
            return kept[1]  # the files may be half replaced: they are checked again for the next connection
        self._kept["context"] = seen, context
        return context

    def exchange(self) -> ClientExchange:
        """Begin to authenticate. Raises ``AuthenticationFailed`` if there is no usable password."""
        from ....protocol.auth.scram import ClientExchange, ScramError, prepare

        password: object = self.password
        if callable(password):
            try:
                password = password()
            except BaseException as error:
                if ends_program(error):
                    raise
                raise AuthenticationFailed(
                    f"the password function of user {self.user!r} failed: {type(error).__name__}"
                ) from error
        if not isinstance(password, str):
            raise AuthenticationFailed(
                f"the password function of user {self.user!r} returned {type(password).__name__}, expected str"
            )
        try:
            return ClientExchange(self.user, prepare(password), derive=self._derive)
        except ScramError as error:
            raise AuthenticationFailed(f"the password of user {self.user!r} is not valid: {error}") from None

    def _derive(self, password: str, salt: bytes, iterations: int) -> Keys:
        from ....protocol.auth.scram import derive_keys

        asked = password, salt, iterations
        keys: Keys | None = self._kept.get(asked)
        if keys is None:
            keys = derive_keys(*asked)
            if len(self._kept) > KEYS_KEPT:
                self._kept.clear()
            self._kept[asked] = keys
        return keys


NO_ACCESS = ClientAccess()
"""Access of a client without options: no user, no TLS, the usual name."""


def check_read_from(read_from: object) -> bool:
    """Return whether followers may answer too. Raises ``InvalidArgument`` unless it is ``"primary"`` or ``"any"``."""
    if read_from not in ("primary", READ_FROM_ANY):
        raise InvalidArgument(f"read_from must be 'primary' or 'any', not {read_from!r}")
    return read_from == READ_FROM_ANY


REPLACEMENTS = {
    "acks": "use flush='sync', which acknowledges when the message is on disk",
    "auto_offset_reset": "use start='first' or start='last', which says where a new group begins",
    "batch_size": "send_many and send_bulk make frames of the right size",
    "bootstrap_servers": "pass the broker's address as the first argument",
    "compression_type": "use compression='zlib', 'lz4' or 'zstd'",
    "enable_idempotence": "a resent message is always stored only once",
    "enable_auto_commit": "use auto_commit=False, which leaves committing to commit()",
    "group_id": "use group='…'",
    "linger_ms": "no need to wait: messages sent while a frame is in flight go together in the next one",
    "max_poll_records": "use batch=n, which passes the listener up to n messages at a time",
    "partitioner": "use the message's sharding_key=, which selects its queue",
    "retries": "use delivery_timeout=, which limits how long a message is retried",
    "username": "use user='…'",
}
"""Arguments of other brokers' clients, and what to use instead."""


def access_for(client: object, options: Mapping[str, Any], others: Collection[str] = ()) -> ClientAccess:
    """Return ``access_of(**options)``; ``options`` are all arguments that the constructor of ``client`` does not name
    and that are not in ``others``. Raises ``InvalidArgumentType`` (a ``TypeError``) for an unknown one."""
    known = AccessOptions.__annotations__
    for name in options:
        if name not in known:
            raise InvalidArgumentType(
                f"{type(client).__name__}() has no argument {name!r}{_instead(client, name, others)}"
            )
    return access_of(**options)


def _instead(client: object, name: str, others: Collection[str]) -> str:
    from difflib import get_close_matches
    from inspect import Parameter, signature

    parameters = signature(type(client)).parameters.values()
    accepted = {each.name for each in parameters if each.kind is not Parameter.VAR_KEYWORD}
    accepted |= {*others, *AccessOptions.__annotations__}
    if name in REPLACEMENTS:
        return f": {REPLACEMENTS[name]}"
    close = get_close_matches(name, accepted, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(sorted(accepted))}"


def access_of(
    *,
    user: Any = None,
    password: Any = None,
    tls: Any = None,
    tls_certificate: Any = None,
    tls_key: Any = None,
    client_name: Any = None,
) -> ClientAccess:
    """Check the access arguments of a client (``AccessOptions``).

    Raises ``InvalidArgument`` for invalid values and for files that cannot be used.
    """
    if user is None and password is None and tls in (None, False) and not (tls_certificate or tls_key or client_name):
        return NO_ACCESS
    if not isinstance(client_name, str | None):
        raise InvalidArgumentType(f"client_name must be a str, not {type(client_name).__name__}")
    if client_name and len(client_name) > CLIENT_NAME_CHARS_MAX:
        raise InvalidArgument(f"client_name has {len(client_name)} characters; at most {CLIENT_NAME_CHARS_MAX} fit")
    check_unicode("client_name", client_name or "")
    user, password = _checked_user(user, password)
    tls, tls_certificate, tls_key = _checked_tls(tls, tls_certificate, tls_key)
    access = ClientAccess(user, password, tls, tls_certificate, tls_key, client_name or "")
    access.context()
    return access


def _checked_user(user: Any, password: Any) -> tuple[str, Password]:
    if user is None and password is None:
        return "", ""
    if not isinstance(user, str | None):
        raise InvalidArgumentType(f"user must be a str, not {type(user).__name__}")
    if not isinstance(password, str | None) and not callable(password):
        raise InvalidArgumentType(f"password must be a str or a function, not {type(password).__name__}")
    if not user:
        raise InvalidArgument("password was given without user; pass both")
    if not password:
        raise InvalidArgument(f"user {user!r} was given without password; pass both")
    from ....protocol.auth.scram import ScramError, prepare

    for what, text in (("user", user), ("password", password)):
        try:
            if isinstance(text, str):
                prepare(text)
        except ScramError as error:
            raise InvalidArgument(f"{what} is not valid: {error}") from None
    return user, password


def _checked_tls(tls: Any, certificate: Any, key: Any) -> tuple[bool | str | ssl.SSLContext, str, str]:
    if tls is None:
        tls = bool(certificate)
    if isinstance(tls, os.PathLike):
        tls = os.fspath(tls)
    if not isinstance(tls, bool | str):
        import ssl

        if not isinstance(tls, ssl.SSLContext):
            raise InvalidArgumentType(
                f"tls must be a bool, the path of a CA's PEM file or an ssl.SSLContext, not {type(tls).__name__}"
            )
        if certificate or key:
            raise InvalidArgument("tls_certificate and tls_key belong in the SSLContext that is passed as tls")
        return tls, "", ""
    if tls == "":
        raise InvalidArgument("tls is empty; pass True, or the path of the CA's PEM file")
    for name, path in (("tls_certificate", certificate), ("tls_key", key)):
        if not isinstance(path, str | os.PathLike | None):
            raise InvalidArgumentType(f"{name} must be a path, not {type(path).__name__}")
    if key and not certificate:
        raise InvalidArgument("tls_key was given without tls_certificate; pass both")
    if certificate and not tls:
        raise InvalidArgument("tls_certificate was given with tls=False; leave one of them out")
    return tls, os.fspath(certificate or ""), os.fspath(key or "")
