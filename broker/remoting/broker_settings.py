"""The broker's settings under the names of RocketMQ's ``BrokerConfig`` and ``MessageStoreConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocol.errors import NoPermission
from ..addresses import parse_address
from ..config import Settings, value_of
from ..handlers.settings import HOT_SETTINGS

_NAMES = {
    "autoCreateTopicEnable": "topics.auto_create",
    "defaultTopicQueueNums": "topics.default_queues",
    "deleteWhen": "retention.delete_when",
    "diskMaxUsedSpaceRatio": "retention.disk_clean_percent",
    "fileReservedTime": "retention.file_reserved_hours",
    "mappedFileSizeCommitLog": "store.commitlog_file_bytes",
    "mappedFileSizeConsumeQueue": "store.consumequeue_file_bytes",
    "maxHashSlotNum": "store.index_slots",
    "maxIndexNum": "store.index_entries",
    "maxMessageSize": "store.message_bytes_max",
    "storePathRootDir": "store.path",
    "transactionCheckInterval": "transactions.check_interval_ms",
    "transactionCheckMax": "transactions.check_times_max",
    "transactionTimeOut": "transactions.timeout_ms",
}
"""FlintMQ's setting for each of RocketMQ's that has one."""


def rocketmq_settings(settings: Settings, broker_name: str, cluster: str, address: str) -> dict[str, str]:
    """Return the settings by RocketMQ's names. ``address``: HOST:PORT for RocketMQ's clients."""
    host, port = parse_address(address)
    values: dict[str, Any] = {
        "brokerClusterName": cluster,
        "brokerId": 0,
        "brokerIP1": host,
        "brokerName": broker_name,
        "brokerPermission": 6,
        "brokerRole": "SYNC_MASTER" if settings.replication.set else "ASYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH" if settings.flush.policy == "sync" else "ASYNC_FLUSH",
        "listenPort": port,
        "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "namesrvAddr": settings.remoting.name_servers,
        "timerWheelEnable": True,
        **{name: value_of(settings, own) for name, own in _NAMES.items()},
        # After the names: the setting itself may be the word ``loopback``.
        "autoCreateTopicEnable": settings.auto_create_topics(),
    }
    return {name: _text(value) for name, value in sorted(values.items())}


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def own_changes(values: Mapping[str, str]) -> dict[str, str]:
    """Return changes by the names of FlintMQ's settings. Raises ``NoPermission`` if one of them has no such name.

    Names that may not be changed are refused as a whole: a remote change of RocketMQ's other settings has run commands
    on its machines before (CVE-2023-33246).
    """
    changeable = sorted(name for name, own in _NAMES.items() if own in HOT_SETTINGS)
    changes = {}
    for name, value in values.items():
        if name not in changeable:
            raise NoPermission(
                f"setting {name[:80]} cannot be changed by UPDATE_BROKER_CONFIG, only {', '.join(changeable)}; nothing "
                "was changed. FlintMQ's other settings: `flintmq config set`, or the file of `serve --config`"
            )
        changes[_NAMES[name]] = value
    return changes
