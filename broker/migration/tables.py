"""A RocketMQ master's tables, written through those of the store. Belongs to the thread that owns the store."""

from __future__ import annotations

from typing import Any

from ...protocol.names import is_folder_name
from ..store import MessageStore, TopicConfig
from ..store.files.file_system import make_durable_folder, replace_file
from ..store.files.json_table import SHAPE_ERRORS
from ..store.timers.timer_files import TIMERCHECK, TIMERCHECK_BYTES
from .errors import MigrationError
from .master import MasterTables


def apply_names(store: MessageStore, tables: MasterTables) -> None:
    """Take topics and groups; durable when it returns. Raises ``MigrationError`` for a table of another shape.

    A topic that the master deleted stays in the store: whether records that came meanwhile belong to it or to a new
    topic of its name is not known here.
    """
    try:
        _apply_topics(store, tables.topics["topicConfigTable"])
        store.groups.replace(tables.groups)
    except SHAPE_ERRORS as error:
        raise _unusable("topics and groups", error) from error
    if store.groups.dirty:
        if store.consumer_offsets.is_missing:
            store.consumer_offsets.persist()  # a start would take it for lost
        store.groups.persist()


def _apply_topics(store: MessageStore, rows: dict[str, Any]) -> None:
    for name, row in rows.items():
        if not is_folder_name(name):
            raise ValueError(f"{name[:300]!r} cannot be a topic: it would not be a folder within the store")
        config, before = TopicConfig.from_json(name, row), store.topics.get(name)
        if before is None or before.to_json() != config.to_json():
            store.topics.put(config)
    store.topics.save()


def apply_progress(store: MessageStore, tables: MasterTables) -> None:
    """Take the progress of groups, delay levels and timed messages; durable when it returns.

    The store must have, on disk, all of the log that the master had when it answered: progress must never be ahead of
    the log, or a message that was delivered at the master only would be lost. Raises ``MigrationError`` for a table of
    another shape.
    """
    try:
        store.consumer_offsets.replace(tables.consumer_offsets)
        store.delay_offsets.take(tables.delay_offsets)
    except SHAPE_ERRORS as error:
        raise _unusable("offsets", error) from error
    if store.consumer_offsets.dirty:
        store.consumer_offsets.persist()
    if store.delay_offsets.dirty:
        store.delay_offsets.persist()
    if len(tables.timer_check) >= TIMERCHECK.size:
        path = store.path / "config" / "timercheck"
        make_durable_folder(store.files, path.parent)
        replace_file(store.files, path, tables.timer_check[:TIMERCHECK_BYTES].ljust(TIMERCHECK_BYTES, b"\0"))


def _unusable(tables: str, error: Exception) -> MigrationError:
    return MigrationError(
        f"the master's tables of {tables} have another shape than RocketMQ 5.3's: {type(error).__name__}: {error}"
    )
