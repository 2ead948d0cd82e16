"""GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG: show the settings, and change hot settings while the broker runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgpack

from ...protocol.commands import (
    SETTINGS_MAX,
    UPDATE_BROKER_CONFIG,
    BrokerConfigAnswer,
    EmptyRequest,
    UpdateBrokerConfigAnswer,
    UpdateBrokerConfigRequest,
)
from ...protocol.errors import ConfigurationError, InvalidParameter
from ...protocol.fields import decode_fields
from ..config import FIELDS, valid_values, value_of
from ..config_sources import changed_settings

if TYPE_CHECKING:
    from ...protocol.frames import Frame
    from ..config import Settings
    from ..requests.request import Request

HOT_SETTINGS = frozenset(
    {
        "topics.auto_create",
        "topics.default_queues",
        "delivery.delay_max_days",
        "limits.connections_max",
        "limits.connection_in_flight_bytes_max",
        "limits.in_flight_bytes_max",
        "limits.held_pulls_max",
        "limits.held_pulls_per_connection_max",
        "limits.groups_max",
        "limits.committed_offsets_max",
        "limits.half_frame_timeout_ms",
        "limits.idle_timeout_ms",
        "limits.slow_reader_timeout_ms",
        "retention.file_reserved_hours",
        "retention.delete_when",
        "retention.headroom_bytes",
        "retention.disk_clean_percent",
        "retention.disk_force_percent",
        "retention.disk_refuse_percent",
        "retention.check_interval_ms",
        "transactions.open_max",
        "transactions.prepared_attempts_max",
        "log.level",
    }
)
"""Settings that can be changed while the broker runs. Never a path, an address, anything of ``[security]``, the flush
policy, or a value that clients were told when they connected."""

HIDDEN_SECTION = "security."
"""Settings that are not shown, so that an attacker does not learn where the keys are."""
VALUE_CHARS_MAX = 4_096


def get_broker_config(request: Request, settings: Settings, settings_at_start: Settings) -> None:
    """Return every setting except those of ``[security]``, in the order of ``broker.toml``."""
    decode_fields(EmptyRequest, request.frame.fields)
    rows = [
        {
            "name": name,
            "value": value_of(settings, name),
            "at_start": value_of(settings_at_start, name),
            "hot": name in HOT_SETTINGS,
            "rule": valid_values(name),
        }
        for name in FIELDS
        if not name.startswith(HIDDEN_SECTION)
    ]
    request.respond(BrokerConfigAnswer(count=len(rows)), msgpack.packb(rows))


def update_broker_config(request: Request, settings: Settings, change_settings: Callable[[Settings], None]) -> None:
    """Change settings, all or none; the values apply at once, until the broker restarts."""
    params = decode_fields(UpdateBrokerConfigRequest, request.frame.fields)
    rows = change_hot_settings(request, settings, change_settings, _decode_body(request.frame, params.count))
    request.respond(UpdateBrokerConfigAnswer(count=len(rows)), msgpack.packb(rows))


def change_hot_settings(
    request: Request, settings: Settings, change_settings: Callable[[Settings], None], changes: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Change settings, all or none; return (name, old, new) of each. Raises ``InvalidParameter``."""
    for name in changes:
        if name not in HOT_SETTINGS and name in FIELDS:
            raise InvalidParameter(
                f"{name} cannot be changed while the broker runs: set it in the file of `flintmq-broker serve "
                "--config` and restart the broker; nothing was changed"
            )
    try:
        after = changed_settings(settings, changes)
    except ConfigurationError as error:
        raise InvalidParameter(f"{error}; nothing was changed") from None
    change_settings(after)
    rows = [(name, value_of(settings, name), value_of(after, name)) for name in changes]
    for setting, old, new in rows:
        request.audit(UPDATE_BROKER_CONFIG, f"setting {setting}", old, new)
    return rows


def _decode_body(frame: Frame, count: int) -> dict[str, Any]:
    try:
        changes = msgpack.unpackb(
            frame.body,
            max_map_len=SETTINGS_MAX,
            max_str_len=VALUE_CHARS_MAX,
            max_array_len=0,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidParameter(f"the body is not one msgpack map of settings: {error}") from None
    if type(changes) is not dict or len(changes) != count or not all(type(name) is str for name in changes):
        raise InvalidParameter(f"the body must be one msgpack map of {count} settings, as count says")
    return changes
