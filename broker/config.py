"""The broker's settings: their defaults, rules and sources.

The defaults are defined here and in ``store/settings.py``; ``conf/broker.toml`` repeats them for operators, and a test
keeps both equal. Later layers win: ``conf/broker.toml`` < ``--config FILE`` < environment < ``--set`` < named flags. An
invalid setting raises ``ConfigurationError`` with one line that names the setting, its value, its source and the valid
values.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from ..protocol.commands import DEFAULT_PORT, QUEUES_MAX
from ..protocol.errors import ConfigurationError
from ..protocol.frames import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from ..protocol.storage.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, UNIT_BYTES
from .setting_rules import (
    I32_MAX,
    AddressRule,
    Choice,
    SettingRule,
    Switch,
    TextRule,
    Whole,
    is_loopback,
    parse_address,
)
from .store.settings import MIB, StoreSettings

ENVIRONMENT_PREFIX = "FLINTMQ_"
ENVIRONMENT_SEPARATOR = "__"
PACKAGED_FILE = Path(__file__).resolve().parents[1] / "conf" / "broker.toml"
METRICS_OFF = "off"
DAY_MS = 24 * 60 * 60 * 1000

_HOSTS = TextRule(
    'host names without a port, separated by ; ("broker;broker.example.com")',
    re.compile(r"([A-Za-z0-9_.-]{1,253}(;[A-Za-z0-9_.-]{1,253}){0,31})?\Z"),
)
_OPTIONAL_PATH = TextRule('the path of a file, or ""', re.compile(r".{0,4096}\Z"))
_HOURS = re.compile(r"([01][0-9]|2[0-3])(;([01][0-9]|2[0-3]))*\Z")

# ---- the settings, by section ----


class Section(BaseModel):
    """One section of the settings; unknown names in it are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


_STORE_DEFAULTS = StoreSettings()


class ServerSection(Section):
    """``[server]``: address, name and threads of the broker."""

    listen: Annotated[str, AddressRule()] = f"127.0.0.1:{DEFAULT_PORT}"
    advertise: Annotated[str, AddressRule(optional=True)] = ""
    name: Annotated[str, TextRule("a name of 1 to 256 printable characters", re.compile(r".{1,256}\Z"))] = "flintmq"
    insecure: Annotated[bool, Switch()] = False
    reader_threads: Annotated[int, Whole(1, 64)] = 4
    stop_timeout_ms: Annotated[int, Whole(0, 60_000)] = 4_000


class SecuritySection(Section):
    """``[security]``: authentication and TLS."""

    auth: Annotated[Literal["off", "scram"], Choice(("off", "scram"))] = "off"
    auth_timeout_ms: Annotated[int, Whole(100, 600_000)] = 10_000
    tls_certificate: Annotated[str, _OPTIONAL_PATH] = ""
    tls_key: Annotated[str, _OPTIONAL_PATH] = ""
    tls_client_ca: Annotated[str, _OPTIONAL_PATH] = ""
    tls_min: Annotated[Literal["1.2", "1.3"], Choice(("1.2", "1.3"))] = "1.2"

    @property
    def knows_clients(self) -> bool:
        """True if every client has to authenticate, as a user or with a certificate."""
        return self.auth != "off" or bool(self.tls_client_ca)


class StoreSection(Section):
    """``[store]``: the store's folder, and the sizes of ``StoreSettings``."""

    path: Annotated[str, TextRule("the path of a folder")] = "./flintmq-store"
    commitlog_file_bytes: Annotated[int, Whole(4 * MIB, 2 * 1024 * MIB - 4096, 4096)] = (
        _STORE_DEFAULTS.commitlog_file_bytes
    )
    consumequeue_file_bytes: Annotated[int, Whole(UNIT_BYTES, I32_MAX, UNIT_BYTES)] = (
        _STORE_DEFAULTS.consumequeue_file_bytes
    )
    index_slots: Annotated[int, Whole(500, 500_000_000)] = _STORE_DEFAULTS.index_slots
    index_entries: Annotated[int, Whole(4, 100_000_000)] = _STORE_DEFAULTS.index_entries
    message_bytes_max: Annotated[int, Whole(1024, 64 * MIB)] = _STORE_DEFAULTS.message_bytes_max
    allocate_step_bytes: Annotated[int, Whole(1 * MIB, 2 * 1024 * MIB - 4096, 4096)] = (
        _STORE_DEFAULTS.allocate_step_bytes
    )
    verify_at_start_bytes: Annotated[int, Whole(0, 2**50)] = _STORE_DEFAULTS.verify_at_start_bytes
    record_checksum: Annotated[bool, Switch()] = _STORE_DEFAULTS.record_checksum
    reput_chunk_bytes: Annotated[int, Whole(64 * 1024, 256 * MIB)] = _STORE_DEFAULTS.reput_chunk_bytes


class FlushSection(Section):
    """``[flush]``: flush policy and intervals."""

    policy: Annotated[Literal["sync", "async"], Choice(("sync", "async"))] = (
        "async" if _STORE_DEFAULTS.flush_policy == "async" else "sync"
    )
    interval_ms: Annotated[int, Whole(1, DAY_MS)] = _STORE_DEFAULTS.flush_interval_ms
    least_pages: Annotated[int, Whole(0, 1_000_000)] = _STORE_DEFAULTS.flush_least_pages
    thorough_interval_ms: Annotated[int, Whole(1, DAY_MS)] = _STORE_DEFAULTS.flush_thorough_interval_ms
    stall_ms: Annotated[int, Whole(10, DAY_MS)] = _STORE_DEFAULTS.flush_stall_ms
    sync_timeout_ms: Annotated[int, Whole(10, DAY_MS)] = _STORE_DEFAULTS.flush_sync_timeout_ms
    checkpoint_interval_ms: Annotated[int, Whole(10, DAY_MS)] = _STORE_DEFAULTS.checkpoint_interval_ms


class TopicsSection(Section):
    """``[topics]``: automatic creation of topics."""

    auto_create: Annotated[bool | Literal["loopback"], Choice(("loopback",), switch=True)] = "loopback"
    default_queues: Annotated[int, Whole(1, QUEUES_MAX)] = 4
    auto_create_max: Annotated[int, Whole(0, 10_000_000)] = 10_000


class DeliverySection(Section):
    """``[delivery]``: delayed and timed messages."""

    delay_max_days: Annotated[int, Whole(1, 3_650)] = 40


class LimitsSection(Section):
    """``[limits]``: connections, frames, memory, groups and deduplication."""

    connections_max: Annotated[int, Whole(1, 1_000_000)] = 20_000
    connections_per_address_max: Annotated[int, Whole(1, 1_000_000)] = 1_000
    frame_bytes_max: Annotated[int, Whole(HEADER_BYTES_MAX + 4096, 1024 * MIB)] = FRAME_BYTES_MAX
    produce_frame_bytes_max: Annotated[int, Whole(4096, 1024 * MIB)] = 1 * MIB
    produce_messages_max: Annotated[int, Whole(1, I32_MAX)] = 16_384
    connection_in_flight_bytes_max: Annotated[int, Whole(4096, 2**40)] = 8 * MIB
    in_flight_bytes_max: Annotated[int, Whole(4096, 2**40)] = 128 * MIB
    receive_bytes_max: Annotated[int, Whole(4096, 2**40)] = 64 * MIB
    send_bytes_max: Annotated[int, Whole(4096, 2**40)] = 64 * MIB
    busy_retry_after_ms: Annotated[int, Whole(1, 60_000)] = 100
    held_pulls_max: Annotated[int, Whole(0, 10_000_000)] = 100_000
    held_pulls_per_connection_max: Annotated[int, Whole(1, 1_000_000)] = 4096
    groups_max: Annotated[int, Whole(1, 10_000_000)] = 10_000
    committed_offsets_max: Annotated[int, Whole(1, 100_000_000)] = 200_000
    half_frame_timeout_ms: Annotated[int, Whole(10, DAY_MS)] = 60_000
    idle_timeout_ms: Annotated[int, Whole(10, DAY_MS)] = 120_000
    write_buffer_bytes_max: Annotated[int, Whole(4096, 2**40)] = 4 * MIB
    slow_reader_timeout_ms: Annotated[int, Whole(10, DAY_MS)] = 60_000
    sequence_runs_max: Annotated[int, Whole(1024, 100_000_000)] = 131_072
    sequence_producer_runs_max: Annotated[int, Whole(16, 10_000_000)] = 1024
    sequence_expiry_ms: Annotated[int, Whole(1000, 30 * DAY_MS)] = 15 * 60_000
    sequence_recovery_bytes: Annotated[int, Whole(0, 2**50)] = 256 * MIB


class RetentionSection(Section):
    """``[retention]``: deletion of old log files."""

    file_reserved_hours: Annotated[int, Whole(0, 876_000)] = 72
    delete_when: Annotated[
        str, TextRule('hours from 00 to 23 with two digits, separated by ; ("04", "04;16")', _HOURS)
    ] = "04"
    headroom_bytes: Annotated[int, Whole(0, 2**60)] = 8 * 1024 * MIB
    disk_clean_percent: Annotated[int, Whole(1, 100)] = 75
    disk_force_percent: Annotated[int, Whole(1, 100)] = 85
    disk_refuse_percent: Annotated[int, Whole(1, 100)] = 90
    check_interval_ms: Annotated[int, Whole(10, DAY_MS)] = 1000


class TransactionsSection(Section):
    """``[transactions]``: timeouts and limits of open transactions."""

    timeout_ms: Annotated[int, Whole(10, DAY_MS)] = 6_000
    check_interval_ms: Annotated[int, Whole(10, DAY_MS)] = 30_000
    check_times_max: Annotated[int, Whole(1, 10_000)] = 15
    open_max: Annotated[int, Whole(1, 10_000_000)] = 100_000
    prepared_timeout_ms: Annotated[int, Whole(10, 30 * DAY_MS)] = 3_600_000
    prepared_attempts_max: Annotated[int, Whole(1, 1_000_000)] = 10_000


class MetricsSection(Section):
    """``[metrics]``: the HTTP endpoint for metrics and health checks."""

    listen: Annotated[str, AddressRule(optional=True, words=(METRICS_OFF,))] = ""
    hosts: Annotated[str, _HOSTS] = ""
    insecure: Annotated[bool, Switch()] = False


class LogSection(Section):
    """``[log]``: log and audit log."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Choice(("debug", "info", "warning", "error"))] = (
        "info"
    )
    audit: Annotated[str, TextRule('the path of a file, or ""', re.compile(r".{0,4096}\Z"))] = ""
    format: Annotated[Literal["text", "json"], Choice(("text", "json"))] = "text"


@dataclass(frozen=True)
class Layer:
    """Settings from one source. ``values``: section → name → value; ``sources``: setting → name of its source."""

    source: str
    values: Mapping[str, Mapping[str, object]]
    sources: Mapping[str, str] = field(default_factory=dict)

    def source_of(self, name: str) -> str:
        """Return the source of the setting ``name`` of this layer, for messages."""
        return self.sources.get(name, self.source)

    def __contains__(self, name: str) -> bool:
        section, _, key = name.partition(".")
        return key in self.values.get(section, {})


class _LayerSource(PydanticBaseSettingsSource):
    """Adapter of one layer to pydantic-settings."""

    def __init__(self, settings_cls: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._layer.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {section: dict(values) for section, values in self._layer.values.items()}


class Settings(BaseSettings):
    """All settings of a broker. ``Settings()`` has only defaults; ``load_settings`` reads the layers."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, validate_default=True)

    server: ServerSection = ServerSection()
    security: SecuritySection = SecuritySection()
    store: StoreSection = StoreSection()
    flush: FlushSection = FlushSection()
    topics: TopicsSection = TopicsSection()
    delivery: DeliverySection = DeliverySection()
    limits: LimitsSection = LimitsSection()
    retention: RetentionSection = RetentionSection()
    transactions: TransactionsSection = TransactionsSection()
    metrics: MetricsSection = MetricsSection()
    log: LogSection = LogSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return only the layers of ``load_settings``, the last one first; they know the source of each value."""
        assert isinstance(init_settings, InitSettingsSource)
        layers: Sequence[Layer] = init_settings.init_kwargs.get("layers", ())
        return (
            *(_LayerSource(settings_cls, layer) for layer in reversed(layers)),
            _LayerSource(settings_cls, _NOTHING),
        )

    def store_settings(self) -> StoreSettings:
        """Return the settings of the store: ``[store]`` except its path, and ``[flush]``."""
        values = self.store.model_dump(exclude={"path"})
        for name, value in self.flush.model_dump().items():
            values[name if name.startswith("checkpoint_") else f"flush_{name}"] = value
        return StoreSettings(**values)

    def auto_create_topics(self) -> bool:
        """Return whether a message to an unknown topic creates the topic."""
        if self.topics.auto_create == "loopback":
            return is_loopback(parse_address(self.server.listen)[0])
        return self.topics.auto_create


_NOTHING = Layer("defaults", {})


def setting_names() -> Iterator[str]:
    """Yield every setting as SECTION.NAME, in the order of ``broker.toml``."""
    for section, info in Settings.model_fields.items():
        assert isinstance(info.annotation, type)
        assert issubclass(info.annotation, Section)
        for name in info.annotation.model_fields:
            yield f"{section}.{name}"


def rule_of(name: str) -> SettingRule:
    """Return the rule of the setting SECTION.NAME."""
    section, _, key = name.partition(".")
    model = Settings.model_fields[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, Section)
    return next(item for item in model.model_fields[key].metadata if isinstance(item, SettingRule))


# ---- the layers ----


def load_settings(
    *, config: Path | None, environment: Mapping[str, str], assignments: Iterable[str], flags: Mapping[str, object]
) -> Settings:
    """Return the settings from all layers.

    ``config``: the file of ``--config``; ``environment``: usually ``os.environ``; ``assignments``: the
    ``SECTION.NAME=VALUE`` of ``--set``; ``flags``: values of the named flags by setting, e.g.
    ``{"server.listen": "…"}``. Raises ``ConfigurationError``.
    """
    layers: list[Layer] = []
    if PACKAGED_FILE.is_file():
        layers.append(_file_layer(PACKAGED_FILE))
    if config is not None:
        layers.append(_file_layer(config))
    layers += [_environment_layer(environment), _assignment_layer(assignments), _flag_layer(flags)]
    known = set(setting_names())
    for layer in layers:
        for section, values in layer.values.items():
            for key in values:
                _check_known(f"{section}.{key}", layer.source_of(f"{section}.{key}"), known)
    try:
        settings = Settings(layers=layers)  # type: ignore[call-arg]
    except ValidationError as error:
        raise _refusal(error, layers) from None
    _check_together(settings, layers)
    return settings


def changed_settings(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """Return ``settings`` with the values of ``changes`` (by SECTION.NAME), checked as at the start.

    Raises ``ConfigurationError`` for an unknown setting, an invalid value, or values that contradict each other.
    """
    asked: dict[str, dict[str, object]] = {}
    known = set(setting_names())
    for name, value in changes.items():
        _check_known(name, "requested", known)
        section, _, key = name.partition(".")
        asked.setdefault(section, {})[key] = value
    layers = [Layer("current value", settings.model_dump()), Layer("requested", asked)]
    try:
        changed = Settings(layers=layers)  # type: ignore[call-arg]
    except ValidationError as error:
        raise _refusal(error, layers) from None
    _check_together(changed, layers)
    return changed


def value_of(settings: Settings, name: str) -> int | str | bool:
    """Return the value of SECTION.NAME."""
    section, _, key = name.partition(".")
    value: int | str | bool = getattr(getattr(settings, section), key)
    return value


def _file_layer(path: Path) -> Layer:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {path} is not valid TOML: {error}") from None
    for section, content in values.items():
        if not isinstance(content, dict):
            _check_known(section, str(path), set(setting_names()))
    return Layer(str(path), values)


def _environment_layer(environment: Mapping[str, str]) -> Layer:
    values: dict[str, dict[str, object]] = {}
    sources: dict[str, str] = {}
    for variable, value in environment.items():
        section, separator, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition(ENVIRONMENT_SEPARATOR)
        if variable.startswith(ENVIRONMENT_PREFIX) and separator:
            values.setdefault(section, {})[key] = value
            sources[f"{section}.{key}"] = f"the environment variable {variable}"
    return Layer("the environment", values, sources)


def _assignment_layer(assignments: Iterable[str]) -> Layer:
    values: dict[str, dict[str, object]] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        section, dot, key = name.strip().partition(".")
        if not separator or not dot:
            raise ConfigurationError(f"--set {assignment}: use SECTION.NAME=VALUE, e.g. store.index_slots=5000")
        values.setdefault(section, {})[key] = value
    return Layer("--set", values)


def _flag_layer(flags: Mapping[str, object]) -> Layer:
    values: dict[str, dict[str, object]] = {}
    sources: dict[str, str] = {}
    for name, value in flags.items():
        section, _, key = name.partition(".")
        values.setdefault(section, {})[key] = value
        sources[name] = f"--{section if key == 'path' or key == 'policy' else key}"
    return Layer("flags", values, sources)


# ---- refusals ----


def _check_known(name: str, source: str, known: set[str]) -> None:
    if name in known:
        return
    sections = sorted({each.partition(".")[0] for each in known})
    if name in sections:
        raise ConfigurationError(f"{name} ({source}) is a section, not a setting: use [{name}] with its settings below")
    key = name.partition(".")[2]
    same_key = [each for each in known if key and each.partition(".")[2] == key]
    nearest = same_key or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else f"the sections are {', '.join(sections)}"
    raise ConfigurationError(f"unknown setting {name} ({source}); {hint}")


def _origin(name: str, layers: Sequence[Layer]) -> str:
    return next((layer.source_of(name) for layer in reversed(layers) if name in layer), "default")


def _refusal(error: ValidationError, layers: Sequence[Layer]) -> ConfigurationError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"][:2])
    value = first["input"]
    return ConfigurationError(f"{name} = {value!r} ({_origin(name, layers)}): must be {rule_of(name).describe()}")


def _check_together(settings: Settings, layers: Sequence[Layer]) -> None:
    """Check the rules that involve several settings."""

    def refuse(name: str, value: int, rule: str, others: Iterable[str]) -> None:
        given = ", ".join(f"{other} ({_origin(other, layers)})" for other in others)
        raise ConfigurationError(f"{name} = {value} ({_origin(name, layers)}): must be {rule}; see also {given}")

    _check_security(settings.security, layers)
    store, limits = settings.store, settings.limits
    index_file_bytes = (
        INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * store.index_slots + INDEX_ENTRY_BYTES * store.index_entries
    )
    if index_file_bytes > I32_MAX:
        refuse(
            "store.index_entries",
            store.index_entries,
            f"so small that an index file of {INDEX_HEADER_BYTES} + {INDEX_SLOT_BYTES} × index_slots + "
            f"{INDEX_ENTRY_BYTES} × index_entries = {index_file_bytes} bytes has at most {I32_MAX}",
            ["store.index_slots"],
        )
    if store.message_bytes_max > store.commitlog_file_bytes // 2:
        refuse(
            "store.message_bytes_max",
            store.message_bytes_max,
            f"at most half of a CommitLog file, {store.commitlog_file_bytes // 2}",
            ["store.commitlog_file_bytes"],
        )
    room = limits.frame_bytes_max - HEADER_BYTES_MAX
    if store.message_bytes_max > room:
        refuse(
            "limits.frame_bytes_max",
            limits.frame_bytes_max,
            f"at least {store.message_bytes_max + HEADER_BYTES_MAX}, so that the largest message can be pulled",
            ["store.message_bytes_max"],
        )
    if limits.produce_frame_bytes_max > limits.frame_bytes_max:
        refuse(
            "limits.produce_frame_bytes_max",
            limits.produce_frame_bytes_max,
            f"at most limits.frame_bytes_max, {limits.frame_bytes_max}",
            ["limits.frame_bytes_max"],
        )
    if limits.sequence_producer_runs_max > limits.sequence_runs_max // 2:
        refuse(
            "limits.sequence_producer_runs_max",
            limits.sequence_producer_runs_max,
            f"at most half of what all producers together may have, {limits.sequence_runs_max // 2}",
            ["limits.sequence_runs_max"],
        )
    if limits.in_flight_bytes_max < limits.frame_bytes_max:
        refuse(
            "limits.in_flight_bytes_max",
            limits.in_flight_bytes_max,
            f"at least limits.frame_bytes_max, {limits.frame_bytes_max}; otherwise the largest frame could never "
            "arrive",
            ["limits.frame_bytes_max"],
        )


def _check_security(security: SecuritySection, layers: Sequence[Layer]) -> None:
    """Check that certificate and key are set together, and that a client CA is not set without them."""
    for name, other in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate"), ("tls_client_ca", "tls_key")):
        if getattr(security, name) and not getattr(security, other):
            raise ConfigurationError(
                f"security.{name} = {getattr(security, name)!r} ({_origin(f'security.{name}', layers)}): TLS also "
                f"needs security.{other}"
            )
