"""The store: Apache RocketMQ's files, written, recovered and read. No asyncio, no sockets."""

from __future__ import annotations

from .dispatch.producer_runs import Places, StoredRun
from .errors import (
    CorruptFile,
    CorruptLog,
    DamagedRecord,
    FollowsMaster,
    LogCopyRefused,
    SettingMismatch,
    StoreError,
    StoreFailed,
    StoreLocked,
    WouldBlock,
)
from .files.file_system import Files
from .files.mapped_file import MappedFile
from .files.open_files import descriptors_max, store_descriptors
from .log.produce_batch import (
    LAYOUT_BATCH,
    LAYOUT_BODY,
    Appended,
    ProduceBatch,
    check_count,
    common_properties,
    count_batch,
)
from .log.repeated_batch import RepeatedBatch
from .message_store import MessageStore
from .read.pulls import PullResult, PullSelection
from .read.queries import KeySearch, QueryResult
from .recovery.recovery_report import RecoveryReport
from .settings import StoreSettings
from .tables.config_files import TopicConfig
from .tables.pop_journal import Entry as PopEntry
from .tables.pop_state import SettledAhead
from .tables.staged_state import StagedSnapshot

__all__ = [
    "LAYOUT_BATCH",
    "LAYOUT_BODY",
    "Appended",
    "CorruptFile",
    "CorruptLog",
    "DamagedRecord",
    "Files",
    "FollowsMaster",
    "KeySearch",
    "LogCopyRefused",
    "MappedFile",
    "MessageStore",
    "Places",
    "PopEntry",
    "ProduceBatch",
    "PullResult",
    "PullSelection",
    "QueryResult",
    "RecoveryReport",
    "RepeatedBatch",
    "SettingMismatch",
    "SettledAhead",
    "StagedSnapshot",
    "StoreError",
    "StoreFailed",
    "StoreLocked",
    "StoreSettings",
    "StoredRun",
    "TopicConfig",
    "WouldBlock",
    "check_count",
    "common_properties",
    "count_batch",
    "descriptors_max",
    "store_descriptors",
]
