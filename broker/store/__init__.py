"""The store: Apache RocketMQ's files, written, recovered and read. No asyncio, no sockets."""

from __future__ import annotations

from .config_files import TopicConfig
from .errors import (
    CorruptFile,
    CorruptLog,
    DamagedRecord,
    SettingMismatch,
    StoreError,
    StoreFailed,
    StoreLocked,
    WouldBlock,
)
from .log_ahead import POPULATE_AHEAD_BYTES
from .message_store import MessageStore
from .open_files import descriptors_max, store_descriptors
from .prepared_state import PreparedSnapshot
from .produce_batch import Appended, ProduceBatch, check_count, common_properties
from .producer_runs import Places, StoredRun
from .pulls import Pulled
from .queries import Found
from .recovery_report import RecoveryReport
from .settings import StoreSettings

__all__ = [
    "POPULATE_AHEAD_BYTES",
    "Appended",
    "CorruptFile",
    "CorruptLog",
    "DamagedRecord",
    "Found",
    "MessageStore",
    "Places",
    "PreparedSnapshot",
    "ProduceBatch",
    "Pulled",
    "RecoveryReport",
    "SettingMismatch",
    "StoreError",
    "StoreFailed",
    "StoreLocked",
    "StoreSettings",
    "StoredRun",
    "TopicConfig",
    "WouldBlock",
    "check_count",
    "common_properties",
    "descriptors_max",
    "store_descriptors",
]
