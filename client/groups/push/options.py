"""Options of a group's member, checked before the first request to a broker."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from math import inf
from typing import Any, Final, Literal

from ....protocol.commands import LEASE_MS_MAX, MEMBER_CHARS_MAX
from ....protocol.errors import InvalidParameter
from ....protocol.names import check_name
from ....protocol.storage.delivery import DELAY_LEVEL_MAX
from ...core.consume.batch import TagFilter, check_filter, parse_tags
from ...core.consume.positions import EARLIEST, ENDS, LATEST, End
from ...core.rpc.access import AccessOptions
from ...core.rpc.timeouts import TIMEOUT_SECONDS, check_timeout
from ...core.times import to_millis
from ...endpoint import LogRate
from ...errors import InvalidArgument, InvalidArgumentType

CLUSTERING: Final = "clustering"
BROADCASTING: Final = "broadcasting"
WORK: Final = "work"
FIRST: Final = "first"
LAST: Final = "last"
_STARTS: dict[str, str] = {EARLIEST: FIRST, LATEST: LAST}
"""The protocol's words for the ends of a queue."""

Start = End | datetime
"""Start rule: where a group begins in topics that it has not read before."""
Mode = Literal["clustering", "broadcasting"]
"""Clustering: the members of a group share the messages; broadcasting: each member gets all."""

ReceiveMode = Literal["clustering", "work"]
"""Clustering: the broker assigns the queues to the members; work: any number of consumers share them, each message has
a lease."""
LEASE_SECONDS_MAX: Final = LEASE_MS_MAX / 1000
_OF_MEMBERS = ("auto_commit", "commit_interval", "session_timeout", "max_uncommitted")
"""Options that mean nothing in the mode ``work``."""

Addresses = str | Iterable[str]
Subscriptions = Mapping[str, "str | Iterable[str] | Subscription | None"] | Iterable[str] | str


@dataclass(frozen=True, slots=True)
class Subscription:
    """The messages that a group wants from a topic: those with one of these tags (``"a || b"``, None: any) whose
    properties meet ``filter``, an SQL92 condition."""

    tags: str | Iterable[str] | None = None
    filter: str | None = None


class MemberOptions(AccessOptions, total=False):
    """Keyword arguments of every member of a group."""

    start: Start
    member: str | None
    prefetch_messages: int
    prefetch_bytes: int
    auto_commit: bool
    commit_interval: float
    session_timeout: float
    listener_timeout: float
    retry_times_max: int | None
    delay_level: int
    retry_reason: bool
    timeout: float


class PushOptions(MemberOptions, total=False):
    """Keyword arguments of both push consumers; ``PushConsumer`` describes them."""

    orderly: bool
    workers: int
    mode: Mode
    suspend: float


class ReceiveOptions(MemberOptions, total=False):
    """Keyword arguments of both group consumers; ``GroupConsumer`` describes them."""

    max_open: int
    max_uncommitted: int
    mode: ReceiveMode
    lease: float
    auto_renew: bool


# ---- The checked arguments.

Check = Callable[[str, Any], Any]
"""Returns the checked value of the option with this name. Raises ``InvalidArgument`` or ``InvalidArgumentType``."""


def _option(default: Any, check: Check) -> Any:
    """Return the field of an option that the user may pass."""
    return field(default=default, metadata={"check": check})


def _whole(low: int, high: int) -> Check:
    return lambda name, value: check_whole(name, value, low, high)


def _flag(name: str, value: Any) -> bool:
    return bool(value)


def _unlimited(name: str, value: Any) -> float:
    return check_timeout(name, value, unlimited=True)


def _session(name: str, value: Any) -> float:
    seconds = check_timeout(name, value)
    if not 1 <= seconds <= 300:
        raise InvalidArgument(f"{name} is {value}; it must be 1 to 300 seconds")
    return seconds


def _lease(name: str, value: Any) -> float:
    seconds = check_timeout(name, 30.0 if value is None else value)
    if not 0.001 <= seconds <= LEASE_SECONDS_MAX:
        raise InvalidArgument(f"{name} is {seconds}; it must be 0.001 to {LEASE_SECONDS_MAX:,.0f} seconds")
    return seconds


def _retries(name: str, value: Any) -> int:
    return -1 if value is None else check_whole(name, value, 0, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Options:
    """The checked arguments of a member, with their defaults. Times are in seconds."""

    group: str
    subscriptions: dict[str, tuple[TagFilter, str]]
    member: str
    named: bool
    """True if the user passed the member's name."""
    start: str
    start_ms: int
    mode: str
    batch_max: int
    whole_batches: bool
    orderly: bool = _option(False, _flag)
    workers: int = _option(1, _whole(1, 10_000))
    prefetch_messages: int = _option(16_384, _whole(1, 10_000_000))
    prefetch_bytes: int = _option(64 << 20, _whole(1, 1 << 40))
    auto_commit: bool = _option(True, _flag)
    commit_interval: float = _option(1.0, check_timeout)
    session_timeout: float = _option(10.0, _session)
    listener_timeout: float = _option(900.0, _unlimited)
    retry_times_max: int = _option(-1, _retries)
    """-1: the group's setting."""
    delay_level: int = _option(0, _whole(0, DELAY_LEVEL_MAX))
    suspend: float = _option(1.0, check_timeout)
    retry_reason: bool = _option(True, _flag)
    timeout: float = _option(TIMEOUT_SECONDS, check_timeout)
    max_open: int = _option(0, _whole(1, 1_000_000))
    """Maximum number of open deliveries; 0: a listener handles the messages."""
    max_uncommitted: int = _option(sys.maxsize, _whole(1, 10_000_000))
    lease: float = _option(0.0, _lease)
    """Length of a message's lease in the mode ``work``."""
    auto_renew: bool = _option(True, _flag)
    log_rate: LogRate = field(default_factory=LogRate, compare=False, repr=False)
    """Rate limit of log lines about messages that a listener wants to be retried."""

    @property
    def broadcasting(self) -> bool:
        """True if every member gets all messages."""
        return self.mode == BROADCASTING

    @property
    def leases(self) -> bool:
        """True if each message has a lease, instead of the queues a member."""
        return self.mode == WORK

    @property
    def receives(self) -> bool:
        """True if the application receives messages and settles each of them, instead of a listener."""
        return self.max_open > 0

    @property
    def commits(self) -> bool:
        """True if the broker stores the progress: for a broadcasting member only if it has a permanent name."""
        return not self.broadcasting or self.named


_CHECKS: dict[str, Check] = {each.name: each.metadata["check"] for each in fields(Options) if each.metadata}


def check_options(group: Any, topics: Any, batch: Any, options: Mapping[str, Any]) -> Options:
    """Return the checked arguments of a push consumer. ``options``: those of ``PushOptions`` that were passed.

    Raises ``InvalidArgument`` or ``InvalidArgumentType`` if one is not valid.
    """
    mode = options.get("mode", CLUSTERING)
    if mode not in (CLUSTERING, BROADCASTING):
        raise InvalidArgument(f"mode is {mode!r}; it must be 'clustering' or 'broadcasting'")
    return _checked(group, topics, mode, options, batch)


def check_receive_options(group: Any, topics: Any, options: Mapping[str, Any]) -> Options:
    """Return the checked arguments of a group consumer. ``options``: those of ``ReceiveOptions`` that were passed.

    Raises ``InvalidArgument`` or ``InvalidArgumentType`` if one is not valid.
    """
    mode = options.get("mode", CLUSTERING)
    if mode == WORK:
        if other := next((name for name in _OF_MEMBERS if name in options), None):
            raise InvalidArgument(f"{other} means nothing with mode='work': leave it out")
        given = {"max_open": 1000, "listener_timeout": 3600.0, "lease": None, **options}
        prefetch = check_whole("prefetch_messages", given.pop("prefetch_messages", 0), 0, 1_000_000)
        return replace(_checked(group, topics, mode, given), prefetch_messages=prefetch)
    if mode != CLUSTERING:
        raise InvalidArgument(f"mode is {mode!r}; it must be 'clustering' or 'work'")
    if options.get("lease") is not None:
        raise InvalidArgument(
            "lease is for mode='work'; a member keeps its messages as long as the broker hears from it"
        )
    defaults = {"max_open": 1000, "max_uncommitted": 10_000, "prefetch_messages": 1000, "listener_timeout": inf}
    return _checked(group, topics, mode, {**defaults, **options})


def _checked(group: Any, topics: Any, mode: str, options: Mapping[str, Any], batch: Any = None) -> Options:
    start, start_ms = _check_start(options.get("start", LAST))
    member = options.get("member")
    return Options(
        group=_check_name("group", group),
        subscriptions=_check_topics(topics),
        member=_check_member(member),
        named=member is not None,
        start=start,
        start_ms=start_ms,
        mode=mode,
        batch_max=check_whole("batch", 1024 if batch is None else batch, 1, 65_536),
        whole_batches=batch is not None,
        **{name: check(name, options[name]) for name, check in _CHECKS.items() if name in options},
    )


def check_whole(name: str, value: Any, low: int, high: int) -> int:
    """Return ``value``; raise ``InvalidArgument`` or ``InvalidArgumentType`` unless it is an int in this range."""
    if type(value) is not int:
        raise InvalidArgumentType(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}; it must be {low:,} to {high:,}")
    return value


def _check_name(kind: str, name: Any) -> str:
    if type(name) is not str:
        raise InvalidArgumentType(f"{kind} must be a str, not {type(name).__name__}")
    try:
        return check_name(kind, name)
    except InvalidParameter as error:
        raise InvalidArgument(str(error)) from None


def _check_member(member: Any) -> str:
    if member is None:
        return f"{socket.gethostname()[:60]}@{os.getpid()}@{uuid.uuid4().hex[:8]}"
    if type(member) is not str:
        raise InvalidArgumentType(f"member must be a str, not {type(member).__name__}")
    if not 0 < len(member) <= MEMBER_CHARS_MAX or not member.isprintable():
        raise InvalidArgument(f"member is {member!r:.80}; it must be 1 to {MEMBER_CHARS_MAX} printable characters")
    return member


def _check_start(start: Any) -> tuple[str, int]:
    if isinstance(start, datetime):
        return "time", to_millis("start", start)
    if not isinstance(start, str) or start not in ENDS:
        raise InvalidArgument(
            f"start is {start!r}; it must be 'earliest' (or 'first'), 'latest' (or 'last') or an aware datetime"
        )
    return _STARTS[ENDS[start]], 0


def _check_topics(topics: Any) -> dict[str, tuple[TagFilter, str]]:
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Mapping):
        if not isinstance(topics, Iterable):
            raise InvalidArgumentType(
                f"topics must be a topic, several, or a mapping from topic to tags, not {type(topics).__name__}"
            )
        topics = dict.fromkeys(topics)
    if not topics:
        raise InvalidArgument("topics names no topic; pass at least one")
    found = {}
    for topic, wanted in topics.items():
        subscription = wanted if isinstance(wanted, Subscription) else Subscription(wanted)
        found[_check_name("topic", topic)] = (parse_tags(subscription.tags), check_filter(subscription.filter))
    return found
