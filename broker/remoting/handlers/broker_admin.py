"""Administration of the broker: its figures and settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ....protocol.auth.permissions import GROUP, TOPIC
from ....protocol.remoting import codes
from ....protocol.remoting.fastjson import encode
from ...handlers.broker_admin import change_hot_settings
from ..figures import own_changes, rocketmq_settings, runtime_table
from ..request import encode_lines, settings_lines
from ..rules import sees
from .topics import reply_json

if TYPE_CHECKING:
    from ...config import Settings
    from ...replication.member.replica_member import ReplicaMember
    from ...requests.broker import Broker
    from ...store import MessageStore
    from ..gateway import RemotingGateway
    from ..request import RemotingRequest


async def get_broker_runtime_info(request: RemotingRequest, gateway: RemotingGateway, broker: Broker) -> None:
    """Return the figures that RocketMQ's tools, its dashboard and its exporter read."""

    earliest_ms = await request.read(partial(_earliest_ms, broker.store))
    reply_json(request, {"table": runtime_table(broker, gateway.figures, earliest_ms, gateway.names.is_primary())})


def _earliest_ms(store: MessageStore, hot: bool) -> int:
    """Return the store time of the first record in the log in ms, or -1."""
    record = store.log_reads.record_at(store.min_physical_offset, hot=hot)
    return record.store_timestamp if record is not None else -1


def get_broker_config(
    request: RemotingRequest, gateway: RemotingGateway, settings: Settings, settings_changes: int
) -> None:
    values = rocketmq_settings(settings, gateway.broker_name, gateway.cluster, gateway.address)
    version = json.dumps(gateway.names.data_version(settings_changes), separators=(",", ":"))
    request.reply({"version": version}, encode_lines(values))


def update_broker_config(
    request: RemotingRequest, settings: Settings, change_settings: Callable[[Settings], None]
) -> None:
    """Change settings that FlintMQ has too and that may change while it runs, all or none, until it restarts."""
    change_hot_settings(request, settings, change_settings, own_changes(settings_lines(request)))
    request.reply()


def view_broker_stats_data(request: RemotingRequest, gateway: RemotingGateway) -> None:
    """Return a figure of a topic or of the broker over the last minute, hour and day."""
    name, key = request.ext.text("statsName"), request.ext.text("statsKey")
    found = gateway.figures.of(name, key, gateway.cluster)
    if found is None:
        request.reply(code=codes.SYSTEM_ERROR, remark=f"The stats <{name}> <{key}> not exist")
        return
    reply_json(request, found)


def get_broker_ha_status(
    request: RemotingRequest, gateway: RemotingGateway, store: MessageStore, member: ReplicaMember | None
) -> None:
    """Return the end of the log, and the other members of the replica set with what they have of it."""
    rows = member.status().rows if member is not None else []
    own = member.identity.member if member is not None else ""
    connections = [
        {
            "addr": row.address,
            "diff": max(store.write_offset - row.flushed, 0),
            "inSync": row.in_sync,
            "slaveAckOffset": row.flushed,
            "transferFromWhere": row.flushed,
            "transferredByteInSecond": 0,
        }
        for row in rows
        if row.member != own and row.connected
    ]
    status: dict[str, Any] = {
        "haConnectionInfo": connections,
        "inSyncSlaveNums": sum(bool(row["inSync"]) for row in connections),
        "master": gateway.names.is_primary(),
        "masterCommitLogMaxOffset": store.write_offset,
    }
    reply_json(request, status)


def get_all_delay_offset(request: RemotingRequest, store: MessageStore) -> None:
    """Return how far each delay level is delivered."""
    levels = range(1, 19)
    table = {level: store.delay_offsets.delivered(level) for level in levels if store.delay_offsets.delivered(level)}
    request.reply(body=encode({"offsetTable": table}))


def get_all_consumer_offset(request: RemotingRequest, gateway: RemotingGateway, store: MessageStore) -> None:
    offsets = store.consumer_offsets
    rows = {
        f"{topic}@{group}": dict(sorted(row.items()))
        for group, topic, row in offsets.rows(own=True)
        if sees(request, GROUP, group) and sees(request, TOPIC, topic)
    }
    request.reply(body=encode({"dataVersion": gateway.names.data_version(offsets.changes), "offsetTable": rows}))
