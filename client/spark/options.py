"""The options of the source: their names, their valid values, and which of them can be combined.

The names are those of Spark's Kafka source if it has the option.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...protocol.fields import I64_MAX
from ...protocol.text_files import first_line
from ..core.consume.batch import TagFilter, parse_tags
from ..core.rpc.access import access_of
from ..core.times import to_millis
from ..errors import InvalidArgument
from .brokers import BrokerAddress, parse_bootstrap
from .errors import InvalidOption

TIMEOUT_MS = 60_000
EARLIEST_MARK = -2
LATEST_MARK = -1


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, the parser of its text (raises ``ValueError``), its meaning."""

    name: str
    parse: Callable[[str], Any]
    meaning: str
    secret: bool = False
    """True if no message may show its text."""


def parse_options(given: Mapping[str, str], table: Iterable[Option], source: str) -> dict[str, Any]:
    """Return the values of the given options by their names in ``table``; names are case-insensitive.

    Raises ``InvalidOption`` for an option that is not in ``table``, or whose text is invalid.
    """
    known = {option.name.lower(): option for option in table}
    values = {}
    for name, written in given.items():
        option = known.get(name.lower())
        if option is None:
            raise InvalidOption(f"{source} has no option {name!r}{_meant(name, known)}; it has {_names(known)}")
        try:
            values[option.name] = option.parse(str(written))
        except (ValueError, InvalidArgument) as error:
            shown = "…" if option.secret else repr(written)
            raise InvalidOption(f"option {option.name!r} is {shown}: {error}") from None
    return values


def _names(known: Mapping[str, Option]) -> str:
    return ", ".join(sorted(option.name for option in known.values()))


def _meant(name: str, known: Mapping[str, Option]) -> str:
    close = difflib.get_close_matches(name.lower(), known, 1)
    return f" (did you mean {known[close[0]].name!r}?)" if close else ""


# ---- kinds of values ----


def boolean(written: str) -> bool:
    """Parse ``true`` or ``false``, as Spark writes them."""
    if written.lower() not in ("true", "false"):
        raise ValueError("it must be 'true' or 'false'")
    return written.lower() == "true"


def positive(written: str) -> int:
    if not (written.isascii() and written.isdigit()) or not 0 < int(written) <= I64_MAX:
        raise ValueError("it must be a whole number of at least 1")
    return int(written)


def moment(written: str) -> int:
    """Parse a time as ms since 1970 UTC: such a number, or ISO 8601 with its offset from UTC."""
    if written.isascii() and written.isdigit() and int(written) <= I64_MAX:
        return int(written)
    try:
        parsed = datetime.fromisoformat(written)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise ValueError("it must be milliseconds since 1970 UTC, or ISO 8601 with its zone: '2026-11-21T08:00:00Z'")
    return to_millis("it", parsed)


def topics(written: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in written.split(",") if name.strip()))
    if not names:
        raise ValueError("it names no topic; pass one, or several separated by commas")
    return names


def pattern(written: str) -> re.Pattern[str]:
    """Compile a regular expression that must match a topic's whole name."""
    try:
        return re.compile(not_empty(written.strip()))
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None


def not_empty(written: str) -> str:
    """Return the text, which must not be empty."""
    if not written:
        raise ValueError("it must not be empty")
    return written


def tls(written: str) -> bool | str:
    """Parse ``true``, ``false``, or a path."""
    if written.lower() in ("true", "false"):
        return written.lower() == "true"
    return not_empty(written)


Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic (``topic`` or ``topic@broker``) and queue; −2 the beginning, −1 the end."""


def offsets(written: str) -> str | Offsets:
    """Parse ``earliest``, ``latest`` or JSON: ``{"orders": {"0": 17, "1": -2}}``, or ``{"orders/0": 17}``."""
    if written.strip().lower() in ("earliest", "latest"):
        return written.strip().lower()
    how = (
        'it must be \'earliest\', \'latest\' or JSON such as {"orders": {"0": 17, "1": -2}} (-2: earliest, -1: latest)'
    )
    try:
        parsed = json.loads(written)
    except ValueError as error:
        raise ValueError(f"{how}; as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(how)
    found: dict[str, dict[int, int]] = {}
    for name, value in parsed.items():
        topic, queues = (name, value) if isinstance(value, dict) else _checkpoint_form(name, value, how)
        for queue, offset in queues.items():
            if not (queue.isascii() and queue.isdigit()):
                raise ValueError(f"{topic!r} has the queue {queue!r}, which is not a number; {how}")
            if type(offset) is not int or not LATEST_MARK - 1 <= offset <= I64_MAX:
                raise ValueError(f"{topic!r} has {offset!r} for queue {queue}, which is not an offset; {how}")
            found.setdefault(topic, {})[int(queue)] = offset
    return found


def _checkpoint_form(name: str, offset: Any, how: str) -> tuple[str, dict[str, Any]]:
    topic, slash, rest = name.partition("/")
    queue, at, broker = rest.partition("@")
    if not slash:
        raise ValueError(f"{name!r} has {offset!r} instead of offsets by queue; {how}")
    return topic + at + broker, {queue: offset}


# ---- authentication and TLS ----

ACCESS_OPTIONS = (
    Option("user", not_empty, "name of the user, if the broker requires one"),
    Option("password", not_empty, "the user's password; Spark never shows it", secret=True),
    Option("passwordFile", not_empty, "instead of `password`: file on the driver whose first line is the password"),
    Option("tls", tls, "`true`: TLS with the CAs that each machine trusts; or the path of a CA's PEM file"),
    Option("tlsCertificate", not_empty, "path of a certificate (PEM), if the broker requires one"),
    Option("tlsKey", not_empty, "path of the certificate's key"),
)
"""The files of ``tls``… must exist on every machine that runs tasks."""


def with_access(brokers: Iterable[BrokerAddress], values: Mapping[str, Any]) -> tuple[BrokerAddress, ...]:
    """Return the brokers with the access that the options describe. Raises ``InvalidOption``."""
    password = values.get("password")
    if file := values.get("passwordFile"):
        if password is not None:
            raise InvalidOption("options 'password' and 'passwordFile' exclude each other: leave one out")
        password = _first_line(file)
    try:
        access = access_of(
            user=values.get("user"),
            password=password,
            tls=values.get("tls"),
            tls_certificate=values.get("tlsCertificate"),
            tls_key=values.get("tlsKey"),
        )
    except InvalidArgument as error:
        raise InvalidOption(f"options 'user', 'password', 'tls', …: {error}") from None
    return tuple(replace(broker, access=access) for broker in brokers)


def _first_line(file: str) -> str:
    try:
        password = first_line(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidOption(f"option 'passwordFile' is {file!r}: it cannot be read: {error}") from None
    if not password:
        raise InvalidOption(f"option 'passwordFile' is {file!r}: its first line is empty")
    return password


# ---- the source's options ----

READ_OPTIONS = (
    Option(
        "bootstrap",
        parse_bootstrap,
        "brokers as `host:port`, several separated by commas; a replica set as `NAME=host:port;host:port`",
    ),
    Option("subscribe", topics, "topics, separated by commas"),
    Option("subscribePattern", pattern, "regular expression of topics (whole names, without the broker's own)"),
    Option(
        "startingOffsets",
        offsets,
        "`earliest` (batch's default), `latest` (streaming's), or JSON that names each queue of each topic",
    ),
    Option(
        "endingOffsets",
        offsets,
        "batch: `latest` (default), or JSON that names each queue; the first offset that is not read",
    ),
    Option(
        "startingTimestamp",
        moment,
        "from the first message stored then or later: ms since 1970 UTC, or ISO 8601; not in the future",
    ),
    Option("endingTimestamp", moment, "batch: up to the first message stored then or later"),
    Option(
        "maxOffsetsPerTrigger",
        positive,
        "streaming: maximum number of messages in a micro-batch, but at least one of each queue that has any",
    ),
    Option("minPartitions", positive, "minimum number of Spark partitions; default: one for each queue"),
    Option(
        "failOnDataLoss",
        boolean,
        "`true` (default): fail if messages are gone or damaged; `false`: skip them and continue",
    ),
    Option("includeProperties", boolean, "`true`: a column `properties`"),
    Option("includeHeaders", boolean, "`true`: a column `headers`"),
    Option("tags", parse_tags, "only messages with this tag; `a || b`: with one of these"),
    Option("key", not_empty, "batch: only the messages that have this key or id, found by the index"),
    Option(
        "pushFilters",
        boolean,
        "batch, `true`: filters on topic, queue, queue_offset, stored_at and tags narrow what is pulled",
    ),
    Option("timeoutMs", positive, f"time that a broker has to respond, restarts included (default {TIMEOUT_MS})"),
    *ACCESS_OPTIONS,
)


@dataclass(frozen=True)
class ReadOptions:
    """Options of a read; see ``READ_OPTIONS``. Spark pickles it for the executors, so it contains only plain values."""

    bootstrap: tuple[BrokerAddress, ...]
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: re.Pattern[str] | None = None
    starting_offsets: str | Offsets | None = None
    ending_offsets: str | Offsets | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_properties: bool = False
    include_headers: bool = False
    tags: str = ""
    key: str | None = None
    push_filters: bool = False
    timeout: float = TIMEOUT_MS / 1000

    @property
    def tag_filter(self) -> TagFilter:
        return parse_tags(self.tags)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises ``InvalidOption`` for an unknown, malformed, missing or contradictory one."""
    values = parse_options(given, READ_OPTIONS, "the source 'flintmq'")
    _needs(values, "bootstrap", 'set it to a broker\'s address: option("bootstrap", "127.0.0.1:10911")')
    if "subscribe" not in values:
        _needs(values, "subscribePattern", 'say what to read: option("subscribe", "orders"), or "subscribePattern"')
    for one, other in (
        ("subscribe", "subscribePattern"),
        ("startingOffsets", "startingTimestamp"),
        ("endingOffsets", "endingTimestamp"),
        *(("key", name) for name in ("startingOffsets", "endingOffsets", "minPartitions", "pushFilters")),
    ):
        if one in values and other in values:
            raise InvalidOption(f"options {one!r} and {other!r} exclude each other: leave one out")
    if values.get("endingOffsets") == "earliest":
        raise InvalidOption(
            "option 'endingOffsets' is 'earliest': nothing would be read; leave it out, or give 'latest'"
        )
    check_order(values, "startingTimestamp", "endingTimestamp")
    filter_: TagFilter | None = values.get("tags")
    return ReadOptions(
        bootstrap=with_access(values["bootstrap"], values),
        subscribe=values.get("subscribe", ()),
        subscribe_pattern=values.get("subscribePattern"),
        starting_offsets=values.get("startingOffsets"),
        ending_offsets=values.get("endingOffsets"),
        starting_ms=values.get("startingTimestamp"),
        ending_ms=values.get("endingTimestamp"),
        max_offsets_per_trigger=values.get("maxOffsetsPerTrigger"),
        min_partitions=values.get("minPartitions"),
        fail_on_data_loss=values.get("failOnDataLoss", True),
        include_properties=values.get("includeProperties", False),
        include_headers=values.get("includeHeaders", False),
        tags=filter_.expression if filter_ else "",
        key=values.get("key"),
        push_filters=values.get("pushFilters", False),
        timeout=values.get("timeoutMs", TIMEOUT_MS) / 1000,
    )


def _needs(values: Mapping[str, Any], name: str, how: str) -> None:
    if name not in values:
        raise InvalidOption(f"option {name!r} is missing: {how}")


def check_order(values: Mapping[str, Any], first: str, last: str) -> None:
    """Raise ``InvalidOption`` if the value of the option ``first`` is after that of ``last``."""
    if first in values and last in values and values[first] > values[last]:
        raise InvalidOption(
            f"option {first!r} is after {last!r} ({values[first]} > {values[last]}): nothing is in between"
        )


def check_batch_start(options: ReadOptions) -> None:
    """Raise ``InvalidOption`` for a batch that begins at the end of a queue, where nothing would be read."""
    offsets = options.starting_offsets
    at_end = "it" if offsets == "latest" else ""
    if isinstance(offsets, Mapping):
        ends = [(topic, queue) for topic, queues in offsets.items() for queue in queues if queues[queue] == LATEST_MARK]
        at_end = f"queue {ends[0][1]} of {ends[0][0]!r}" if ends else ""
    if at_end:
        raise InvalidOption(
            f"option 'startingOffsets' begins {at_end} at the end ('latest', -1): a batch would read nothing of it; "
            "give 'earliest', -2 or an offset"
        )


def refuse(given: Mapping[str, str], names: Iterable[str], why: str) -> None:
    """Raise ``InvalidOption`` for the first of these options that was given."""
    lower = {name.lower() for name in given}
    for name in names:
        if name.lower() in lower:
            raise InvalidOption(f"option {name!r} {why}: leave it out")
