"""The broker's settings: their defaults, valid values and sources.

The defaults are defined here and in ``store/settings.py``; ``conf/broker.toml`` repeats them for operators, and a test
keeps both equal.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from ..protocol.commands import DEFAULT_PORT, QUEUES_MAX
from ..protocol.errors import ConfigurationError
from ..protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from ..protocol.storage.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, UNIT_BYTES
from ..protocol.text_files import decode_text
from .addresses import is_loopback, parse_address
from .store.settings import MIB, StoreSettings

METRICS_OFF = "off"
DAY_MS = 24 * 60 * 60 * 1000
I32_MAX = 2**31 - 1

# ---- limits that are not settings, because no operator has a reason to change them ----

PRODUCE_MESSAGES_MAX = 16_384
"""Maximum number of messages of a PRODUCE frame: many small messages take the event loop longest. Clients split larger
batches."""
BUSY_RETRY_AFTER_MS = 100
"""Time that a SYSTEM_BUSY response tells the client to wait."""
PRODUCER_RUNS_MAX = 1024
"""Runs of one producer in one topic that are kept to detect frames that are sent again. A FlintMQ client never has
as many frames in flight."""
SEQUENCE_RECOVERY_BYTES = 256 * MIB
"""Newest part of the log from which a start restores producer runs. It is read in well under a second."""

# ---- types of values ----


def _no_conversion(value: object) -> object:
    """Refuse what pydantic would convert to an integer silently: true is not 1, and 600.0 is not 600."""
    if isinstance(value, (bool, float)):
        raise ValueError("not an integer")
    return value


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("a control character")
    return value


def _address(value: str) -> str:
    parse_address(value)
    return value


def _addresses(value: str) -> str:
    for address in value.split(";") if value else ():
        _address(address)
    return value


Integer = Annotated[int, BeforeValidator(_no_conversion)]
Switch = Annotated[bool, BeforeValidator(_lower)]
Lower = BeforeValidator(_lower)
"""Accepts the words of a ``Literal`` in upper case too, and with spaces around them."""
Text = Annotated[str, AfterValidator(_printable)]
OptionalPath = Annotated[Text, StringConstraints(max_length=4096), Field(description='the path of a file, or ""')]
Address = Annotated[str, AfterValidator(_address)]
ADDRESS = "HOST:PORT (127.0.0.1:10911), [IPV6]:PORT or HOST, with a port from 0 to 65535"

# ---- the settings, by section ----


class Section(BaseModel):
    """One section of the settings. ``description`` of a field: its valid values, unless its type says them."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


_STORE_DEFAULTS = StoreSettings()


class ServerSection(Section):
    """``[server]``: address, name and threads of the broker."""

    listen: Address = Field(default=f"127.0.0.1:{DEFAULT_PORT}", description=ADDRESS)
    advertise: Literal[""] | Address = Field(default="", description=f'{ADDRESS} or ""')
    name: Text = Field(
        default="flintmq", min_length=1, max_length=256, description="a name of 1 to 256 printable characters"
    )
    insecure: Switch = False
    reader_threads: Integer = Field(default=4, ge=1, le=64)
    stop_timeout_ms: Integer = Field(default=4_000, ge=0, le=60_000)


class SecuritySection(Section):
    """``[security]``: authentication and TLS."""

    auth: Annotated[Literal["off", "scram"], Lower] = "off"
    auth_timeout_ms: Integer = Field(default=10_000, ge=100, le=600_000)
    tls_certificate: OptionalPath = ""
    tls_key: OptionalPath = ""
    tls_client_ca: OptionalPath = ""
    tls_min: Annotated[Literal["1.2", "1.3"], Lower] = "1.2"

    @property
    def knows_clients(self) -> bool:
        """True if every client has to authenticate, as a user or with a certificate."""
        return self.auth != "off" or bool(self.tls_client_ca)


class StoreSection(Section):
    """``[store]``: the store's folder, and the sizes of ``StoreSettings``."""

    path: Text = Field(default="./flintmq-store", min_length=1, max_length=4096, description="the path of a folder")
    commitlog_file_bytes: Integer = Field(
        default=_STORE_DEFAULTS.commitlog_file_bytes, ge=4 * MIB, le=2 * 1024 * MIB - 4096, multiple_of=4096
    )
    consumequeue_file_bytes: Integer = Field(
        default=_STORE_DEFAULTS.consumequeue_file_bytes, ge=UNIT_BYTES, le=I32_MAX, multiple_of=UNIT_BYTES
    )
    index_slots: Integer = Field(default=_STORE_DEFAULTS.index_slots, ge=500, le=500_000_000)
    index_entries: Integer = Field(default=_STORE_DEFAULTS.index_entries, ge=4, le=100_000_000)
    message_bytes_max: Integer = Field(default=_STORE_DEFAULTS.message_bytes_max, ge=1024, le=64 * MIB)
    allocate_step_bytes: Integer = Field(
        default=_STORE_DEFAULTS.allocate_step_bytes, ge=1 * MIB, le=2 * 1024 * MIB - 4096, multiple_of=4096
    )
    verify_at_start_bytes: Integer = Field(default=_STORE_DEFAULTS.verify_at_start_bytes, ge=0, le=2**50)
    record_checksum: Switch = _STORE_DEFAULTS.record_checksum


class FlushSection(Section):
    """``[flush]``: flush policy and intervals."""

    policy: Annotated[Literal["sync", "async"], Lower] = "async" if _STORE_DEFAULTS.flush_policy == "async" else "sync"
    interval_ms: Integer = Field(default=_STORE_DEFAULTS.flush_interval_ms, ge=1, le=DAY_MS)
    stall_ms: Integer = Field(default=_STORE_DEFAULTS.flush_stall_ms, ge=10, le=DAY_MS)
    sync_timeout_ms: Integer = Field(default=_STORE_DEFAULTS.flush_sync_timeout_ms, ge=10, le=DAY_MS)


class TopicsSection(Section):
    """``[topics]``: automatic creation of topics."""

    auto_create: Annotated[bool | Literal["loopback"], Lower] = "loopback"
    default_queues: Integer = Field(default=4, ge=1, le=QUEUES_MAX)
    auto_create_max: Integer = Field(default=10_000, ge=0, le=10_000_000)


class RemotingSection(Section):
    """``[remoting]``: the gateway for RocketMQ's clients."""

    listen: Literal[""] | Address = Field(default="", description=f'{ADDRESS} or ""')
    advertise: Literal[""] | Address = Field(default="", description=f'{ADDRESS} or ""')
    open_routes: Annotated[bool | Literal["loopback"], Lower] = "loopback"
    cluster: Text = Field(
        default="DefaultCluster", min_length=1, max_length=127, description="a name of 1 to 127 printable characters"
    )
    vip_channel: bool = True
    name_servers: Annotated[Text, AfterValidator(_addresses)] = Field(
        default="", max_length=4096, description='addresses HOST:PORT separated by ;, or ""'
    )


class DeliverySection(Section):
    """``[delivery]``: delayed and timed messages."""

    delay_max_days: Integer = Field(default=40, ge=1, le=3_650)


class LimitsSection(Section):
    """``[limits]``: connections, frames, memory, groups and deduplication."""

    connections_max: Integer = Field(default=20_000, ge=1, le=1_000_000)
    connections_per_address_max: Integer = Field(default=1_000, ge=1, le=1_000_000)
    frame_bytes_max: Integer = Field(default=FRAME_BYTES_MAX, ge=HEADER_BYTES_MAX + 4096, le=1024 * MIB)
    produce_frame_bytes_max: Integer = Field(default=1 * MIB, ge=4096, le=1024 * MIB)
    connection_in_flight_bytes_max: Integer = Field(default=8 * MIB, ge=4096, le=2**40)
    in_flight_bytes_max: Integer = Field(default=128 * MIB, ge=4096, le=2**40)
    receive_bytes_max: Integer = Field(default=64 * MIB, ge=4096, le=2**40)
    send_bytes_max: Integer = Field(default=64 * MIB, ge=4096, le=2**40)
    held_pulls_max: Integer = Field(default=100_000, ge=0, le=10_000_000)
    held_pulls_per_connection_max: Integer = Field(default=4096, ge=1, le=1_000_000)
    groups_max: Integer = Field(default=10_000, ge=1, le=10_000_000)
    subscription_bytes_max: Integer = Field(default=32 * MIB, ge=4096, le=2**40)
    committed_offsets_max: Integer = Field(default=200_000, ge=1, le=100_000_000)
    idle_timeout_ms: Integer = Field(default=120_000, ge=10, le=DAY_MS)
    slow_reader_timeout_ms: Integer = Field(default=60_000, ge=10, le=DAY_MS)
    sequence_runs_max: Integer = Field(default=131_072, ge=2 * PRODUCER_RUNS_MAX, le=100_000_000)
    sequence_expiry_ms: Integer = Field(default=15 * 60_000, ge=1000, le=30 * DAY_MS)


class RetentionSection(Section):
    """``[retention]``: deletion of old log files."""

    file_reserved_hours: Integer = Field(default=72, ge=0, le=876_000)
    delete_when: str = Field(
        default="04",
        pattern=r"^([01][0-9]|2[0-3])(;([01][0-9]|2[0-3]))*$",
        description='hours from 00 to 23 with two digits, separated by ; ("04", "04;16")',
    )
    headroom_bytes: Integer = Field(default=8 * 1024 * MIB, ge=0, le=2**60)
    disk_clean_percent: Integer = Field(default=75, ge=1, le=100)
    disk_force_percent: Integer = Field(default=85, ge=1, le=100)
    disk_refuse_percent: Integer = Field(default=90, ge=1, le=100)
    until_archived: Switch = False


class TransactionsSection(Section):
    """``[transactions]``: timeouts and limits of open transactions."""

    timeout_ms: Integer = Field(default=6_000, ge=10, le=DAY_MS)
    check_interval_ms: Integer = Field(default=30_000, ge=10, le=DAY_MS)
    check_times_max: Integer = Field(default=15, ge=1, le=10_000)
    open_max: Integer = Field(default=100_000, ge=1, le=10_000_000)
    prepared_timeout_ms: Integer = Field(default=3_600_000, ge=10, le=30 * DAY_MS)
    prepared_attempts_max: Integer = Field(default=10_000, ge=1, le=1_000_000)


class ReplicationSection(Section):
    """``[replication]``: the replica set that the broker is a member of."""

    set: Text = Field(
        default="", max_length=256, pattern="^[^/]*$", description="a name of up to 256 characters without /"
    )
    member: Text = Field(default="", max_length=64, description="an id of up to 64 characters")
    cluster: Text = Field(
        default="flintmq", min_length=1, max_length=256, pattern="^[^/]*$", description="a name without /"
    )
    etcd: Text = Field(
        default="", max_length=4096, description='URLs, separated by commas ("http://a:2379,http://b:2379")'
    )
    etcd_ca: OptionalPath = ""
    etcd_certificate: OptionalPath = ""
    etcd_key: OptionalPath = ""
    etcd_user: Text = Field(default="", max_length=256, description='a name or ""')
    etcd_password_file: OptionalPath = ""
    user: Text = Field(default="", max_length=256, description='a name or ""')
    password_file: OptionalPath = ""
    tls_ca: OptionalPath = ""
    lease_ms: Integer = Field(default=5_000, ge=2_000, le=60_000, multiple_of=1_000)
    lag_max_ms: Integer = Field(default=5_000, ge=500, le=600_000)


class ArchiveSection(Section):
    """``[archive]``: the archive in object storage."""

    url: Text = Field(
        default="", max_length=1024, description='s3://BUCKET/PREFIX, gs://…, az://…, the path of a folder, or ""'
    )
    interval_ms: Integer = Field(default=10_000, ge=100, le=DAY_MS)
    rate_bytes_max: Integer = Field(default=0, ge=0, le=2**50)
    compression: Annotated[Literal["zstd", "none"], Lower] = "zstd"
    single_writer: Switch = False
    on_full: Annotated[Literal["refuse", "gap"], Lower] = "refuse"
    kms_key: Text = Field(default="", max_length=2048, description='the id of a key of the bucket\'s service, or ""')


class MetricsSection(Section):
    """``[metrics]``: the HTTP endpoint for metrics and health checks."""

    # Left to right, because "off" is also a valid host.
    listen: Annotated[Literal["", "off"], Lower] | Address = Field(
        default="", union_mode="left_to_right", description=f'{ADDRESS} or "" or "off"'
    )
    hosts: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_.-]{1,253}(;[A-Za-z0-9_.-]{1,253}){0,31})?$",
        description='host names without a port, separated by ; ("broker;broker.example.com")',
    )
    insecure: Switch = False


class LogSection(Section):
    """``[log]``: log and audit log."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Lower] = "info"
    audit: OptionalPath = ""
    format: Annotated[Literal["text", "json"], Lower] = "text"


class Settings(Section):
    """All settings of a broker. ``Settings()`` has only defaults; ``load_settings`` reads the sources."""

    server: ServerSection = ServerSection()
    security: SecuritySection = SecuritySection()
    store: StoreSection = StoreSection()
    flush: FlushSection = FlushSection()
    topics: TopicsSection = TopicsSection()
    delivery: DeliverySection = DeliverySection()
    limits: LimitsSection = LimitsSection()
    retention: RetentionSection = RetentionSection()
    transactions: TransactionsSection = TransactionsSection()
    remoting: RemotingSection = RemotingSection()
    replication: ReplicationSection = ReplicationSection()
    archive: ArchiveSection = ArchiveSection()
    metrics: MetricsSection = MetricsSection()
    log: LogSection = LogSection()

    def store_settings(self) -> StoreSettings:
        """Return the settings of the store: ``[store]`` except its path, and ``[flush]``."""
        flush = {f"flush_{name}": value for name, value in self.flush.model_dump().items()}
        return StoreSettings(**self.store.model_dump(exclude={"path"}), **flush)

    def auto_create_topics(self) -> bool:
        """Return whether a message to an unknown topic creates the topic."""
        if self.topics.auto_create == "loopback":
            return is_loopback(parse_address(self.server.listen)[0])
        return self.topics.auto_create

    @property
    def open_routes(self) -> bool:
        """True if RocketMQ's clients may ask for routes without a signature."""
        if self.remoting.open_routes == "loopback":
            return not self.remoting.listen or is_loopback(parse_address(self.remoting.listen)[0])
        return self.remoting.open_routes

    @model_validator(mode="after")
    def _check_tls_files(self) -> Settings:
        """Check that certificate and key are set together, and that a client CA is not set without them."""
        for name, other in (
            ("tls_certificate", "tls_key"),
            ("tls_key", "tls_certificate"),
            ("tls_client_ca", "tls_key"),
        ):
            if getattr(self.security, name) and not getattr(self.security, other):
                raise _contradiction(f"security.{name}", f"TLS also needs security.{other}")
        return self

    @model_validator(mode="after")
    def _check_replication(self) -> Settings:
        """Check that a member of a set has an id and a registry, and acknowledges only what is on disk."""
        replication = self.replication
        if not replication.set:
            return self
        for name in ("member", "etcd"):
            if not getattr(replication, name):
                raise _contradiction("replication.set", f"a replica set also needs replication.{name}")
        for name, other in (
            ("user", "password_file"),
            ("etcd_user", "etcd_password_file"),
            ("etcd_certificate", "etcd_key"),
        ):
            if getattr(replication, name) and not getattr(replication, other):
                raise _contradiction(f"replication.{name}", f"it also needs replication.{other}")
        if self.flush.policy != "sync":
            raise _contradiction("flush.policy", 'must be "sync" in a replica set', "replication.set")
        return self

    @model_validator(mode="after")
    def _check_remoting(self) -> Settings:
        """Check that name servers are set only with the gateway, which is the part that registers with them."""
        if self.remoting.name_servers and not self.remoting.listen:
            raise _contradiction("remoting.name_servers", "clients that find the broker there need remoting.listen")
        return self

    @model_validator(mode="after")
    def _check_archive(self) -> Settings:
        """Check that files wait for an archive only if there is one."""
        if self.retention.until_archived and not self.archive.url:
            raise _contradiction("retention.until_archived", "it also needs archive.url")
        return self

    @model_validator(mode="after")
    def _check_sizes(self) -> Settings:
        store, limits = self.store, self.limits
        # RocketMQ maps an index file as a whole, and a map of Java's has at most 2 GiB.
        index_file_bytes = (
            INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * store.index_slots + INDEX_ENTRY_BYTES * store.index_entries
        )
        if index_file_bytes > I32_MAX:
            raise _contradiction(
                "store.index_entries",
                f"must be so small that an index file of {INDEX_HEADER_BYTES} + {INDEX_SLOT_BYTES} × index_slots + "
                f"{INDEX_ENTRY_BYTES} × index_entries = {index_file_bytes} bytes has at most {I32_MAX}",
                "store.index_slots",
            )
        if store.message_bytes_max > store.commitlog_file_bytes // 2:
            raise _contradiction(
                "store.message_bytes_max",
                f"must be at most half of a CommitLog file, {store.commitlog_file_bytes // 2}",
                "store.commitlog_file_bytes",
            )
        if store.message_bytes_max > limits.frame_bytes_max - HEADER_BYTES_MAX:
            raise _contradiction(
                "limits.frame_bytes_max",
                f"must be at least {store.message_bytes_max + HEADER_BYTES_MAX}, so that the largest message can be "
                "pulled",
                "store.message_bytes_max",
            )
        if limits.produce_frame_bytes_max > limits.frame_bytes_max:
            raise _contradiction(
                "limits.produce_frame_bytes_max",
                f"must be at most limits.frame_bytes_max, {limits.frame_bytes_max}",
                "limits.frame_bytes_max",
            )
        if limits.in_flight_bytes_max < limits.frame_bytes_max:
            raise _contradiction(
                "limits.in_flight_bytes_max",
                f"must be at least limits.frame_bytes_max, {limits.frame_bytes_max}; otherwise the largest frame could "
                "never arrive",
                "limits.frame_bytes_max",
            )
        return self


CONTRADICTION = "contradiction"
"""pydantic's type of the errors that ``_contradiction`` makes."""


def _contradiction(name: str, rule: str, *others: str) -> PydanticCustomError:
    return PydanticCustomError(CONTRADICTION, "{rule}", {"name": name, "rule": rule, "others": others})


FIELDS: dict[str, FieldInfo] = {
    f"{section}.{key}": field
    for section, info in Settings.model_fields.items()
    for key, field in info.default.__class__.model_fields.items()
}
"""Every setting by SECTION.NAME, in the order of ``broker.toml``."""


def value_of(settings: Settings, name: str) -> int | str | bool:
    """Return the value of SECTION.NAME."""
    section, _, key = name.partition(".")
    value: int | str | bool = getattr(getattr(settings, section), key)
    return value


def valid_values(name: str) -> str:
    """Return a description of the valid values of SECTION.NAME, to follow "must be"."""
    field = FIELDS[name]
    if field.description:
        return field.description
    if field.annotation is int:
        bounds = {
            bound: getattr(item, bound)
            for item in field.metadata
            for bound in ("ge", "le", "multiple_of")
            if hasattr(item, bound)
        }
        multiple = f", a multiple of {bounds['multiple_of']}" if "multiple_of" in bounds else ""
        return f"an integer from {bounds['ge']} to {bounds['le']}{multiple}"
    switch = field.annotation is bool or bool in get_args(field.annotation)
    words = [word for item in (field.annotation, *get_args(field.annotation)) for word in get_args(item)]
    choices = [*(["true", "false"] if switch else []), *(f'"{word}"' for word in words if isinstance(word, str))]
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


# ---- The sources of the settings, and the messages about invalid ones.
#
# Later sources win: ``conf/broker.toml`` < ``--config FILE`` < environment < ``--set`` < named flags. pydantic checks
# the values; an invalid setting raises ``ConfigurationError`` with one line that names the setting, its value, its
# source and the valid values.
#
# pydantic-settings is not used: its environment source ignores variables of unknown sections, reads ``FLINTMQ_STORE``
# as JSON, and no source of it remembers for an error message where a value came from.

ENVIRONMENT_PREFIX = "FLINTMQ_"
ENVIRONMENT_SEPARATOR = "__"
FIXED = {
    "store.reput_chunk_bytes": "1 MiB",
    "flush.least_pages": "4",
    "flush.thorough_interval_ms": "10 s",
    "flush.checkpoint_interval_ms": "5 s",
    "limits.half_frame_timeout_ms": "60 s",
    "limits.popped_messages_max": "200000",
    "limits.write_buffer_bytes_max": "4 MiB",
    "remoting.stamp_properties": "true",
    "replication.quick_takeover": "true",
    "retention.check_interval_ms": "1 s",
    "limits.produce_messages_max": "16384",
    "limits.busy_retry_after_ms": "100 ms",
    "limits.sequence_producer_runs_max": "1024",
    "limits.sequence_recovery_bytes": "256 MiB",
}
"""Former settings, and the values that they are fixed to now."""
PACKAGED_FILE = Path(__file__).resolve().parents[1] / "conf" / "broker.toml"


class _Given(NamedTuple):
    """One value of one source. ``name``: SECTION.NAME; ``source``: its description for messages."""

    name: str
    value: object
    source: str


def load_settings(
    *, config: Path | None, environment: Mapping[str, str], assignments: Iterable[str], flags: Mapping[str, object]
) -> Settings:
    """Return the settings from all sources.

    ``config``: the file of ``--config``; ``environment``: usually ``os.environ``; ``assignments``: the
    ``SECTION.NAME=VALUE`` of ``--set``; ``flags``: values of the named flags by setting, e.g.
    ``{"server.listen": "…"}``. Raises ``ConfigurationError``.
    """
    return _checked(
        [
            *(_in_file(PACKAGED_FILE) if PACKAGED_FILE.is_file() else ()),
            *(_in_file(config) if config is not None else ()),
            *_in_environment(environment),
            *map(_assigned, assignments),
            *(_Given(name, value, _flag(name)) for name, value in flags.items()),
        ]
    )


def changed_settings(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """Return ``settings`` with the values of ``changes`` (by SECTION.NAME), checked as at the start.

    Raises ``ConfigurationError`` for an unknown setting, an invalid value, or values that contradict each other.
    """
    return _checked(
        [
            # All of them, because rules between settings are checked, too.
            *(_Given(name, value_of(settings, name), "current value") for name in FIELDS),
            *(_Given(name, value, "requested") for name, value in changes.items()),
        ]
    )


def _in_file(path: Path) -> Iterator[_Given]:
    try:
        content = tomllib.loads(decode_text(path.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"cannot read the settings file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"the settings file {path} is not valid TOML: {error}") from None
    for section, values in content.items():
        if not isinstance(values, dict) or (not values and section not in Settings.model_fields):
            yield _Given(section, values, str(path))  # refused because it is not the name of a setting
        else:
            yield from (_Given(f"{section}.{key}", value, str(path)) for key, value in values.items())


def _in_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    for variable, value in environment.items():
        section, separator, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition(ENVIRONMENT_SEPARATOR)
        if variable.startswith(ENVIRONMENT_PREFIX) and separator:
            yield _Given(f"{section}.{key}", value, f"the environment variable {variable}")


def _assigned(assignment: str) -> _Given:
    name, separator, value = assignment.partition("=")
    if not separator or "." not in name:
        raise ConfigurationError(f"--set {assignment}: use SECTION.NAME=VALUE, e.g. store.index_slots=5000")
    return _Given(name.strip(), value, "--set")


def _flag(name: str) -> str:
    section, _, key = name.partition(".")
    return f"--{section if key in ('path', 'policy') else key}"


# ---- checks and their messages ----


def _checked(given: Iterable[_Given]) -> Settings:
    """Return the settings with the last value given for each name. Raises ``ConfigurationError``."""
    values: dict[str, dict[str, object]] = {}
    sources: dict[str, str] = {}
    for name, value, source in given:
        if name not in FIELDS:
            raise ConfigurationError(_unknown(name, source))
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = value
        sources[name] = source
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        # One at a time, because a message is one line.
        first = error.errors(include_url=False)[0]
        raise ConfigurationError(_refusal(first, values, sources)) from None


def _unknown(name: str, source: str) -> str:
    sections = sorted(Settings.model_fields)
    if name in sections:
        return f"{name} ({source}) is a section, not a setting: use [{name}] with its settings below"
    if name in FIXED:
        return f"{name} ({source}) is no longer a setting: the broker always uses {FIXED[name]}. Remove it"
    key = name.partition(".")[2]
    same_key = [each for each in FIELDS if key and each.partition(".")[2] == key]
    nearest = same_key or difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"the sections are {', '.join(sections)}"
    return f"unknown setting {name} ({source}); {hint}"


def _refusal(error: ErrorDetails, values: Mapping[str, Mapping[str, Any]], sources: Mapping[str, str]) -> str:
    """Return pydantic's error as one line: the setting, its value, its source, the rule, other settings that matter."""
    context = error.get("ctx", {})
    if error["type"] == CONTRADICTION:
        name, rule, others = context["name"], context["rule"], context["others"]
    else:
        name, others = ".".join(map(str, error["loc"][:2])), ()
        rule = f"must be {valid_values(name)}"
    section, _, key = name.partition(".")
    value = values[section][key] if name in sources else value_of(Settings(), name)
    source = sources.get(name, "default")
    hint = ", ".join(f"{other} ({sources.get(other, 'default')})" for other in others)
    return f"{name} = {value!r} ({source}): {rule}{f'; see also {hint}' if hint else ''}"
