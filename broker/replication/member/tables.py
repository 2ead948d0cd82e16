"""The tables of a store that its log does not contain: what a primary sends of them, and what a follower takes over.

A table travels whole. They are small beside the log, change rarely or in batches, and the newest version makes all
earlier ones worthless. Progress that refers to the log (delays, staged transactions) is on the primary's disk only as
far as its records are confirmed, so that a follower that takes it over has them too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ....protocol.auth.users import USERS_FILE, UserFile, choose_users
from ....protocol.commands import ReplicateTableRequest
from ....protocol.errors import FlintError
from ...store.files.file_system import make_durable_folder, replace_file
from ...store.files.json_table import SHAPE_ERRORS
from ...store.tables.pop_state import encode_entries
from ...store.tables.store_state import DeletedTopic

if TYPE_CHECKING:
    from ...store import MessageStore
    from ...store.tables.pop_state import PopEntry


class Table(Protocol):
    """One table. ``version`` is cheap and for the loop; the others may block."""

    name: str

    def version(self) -> object:
        """Return a value that changes with the table."""

    def read(self) -> bytes:
        """Return the table as JSON."""

    def write(self, content: bytes) -> None:
        """Replace the table, in memory and durably. Raises ``SHAPE_ERRORS`` for content that is no such table."""


class FileTable:
    """A table that is a file, which its owner replaces. ``reload`` reads it again."""

    def __init__(self, store: MessageStore, path: str, reload: Callable[[], None] = lambda: None) -> None:
        self.name = path
        self._files = store.files
        self._path = store.path / path
        self._reload = reload

    def version(self) -> object:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def write(self, content: bytes) -> None:
        if content:
            # Before the file is replaced: the next start could not read another value.
            if not isinstance(json.loads(content), dict):
                raise ValueError("not a JSON object")
            make_durable_folder(self._files, self._path.parent)
            replace_file(self._files, self._path, content)
            self._reload()


class UsersTable(FileTable):
    """The users' file. Its copy is replaced with it, or a damaged file would let removed users in; only the owner of
    the store may read both."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store, USERS_FILE)
        self._store_path = store.path

    def write(self, content: bytes) -> None:
        """Replace the file and its copy. Raises ``ConfigurationError``."""
        if content:
            users, _ = choose_users(content, None, f"{USERS_FILE} of the primary")
            UserFile(self._store_path).replace(users)


class GroupsTable:
    """The settings of the consumer groups, as they are in memory."""

    name = "config/subscriptionGroup.json"

    def __init__(self, store: MessageStore) -> None:
        self._groups = store.groups

    def version(self) -> object:
        return self._groups.changes

    def read(self) -> bytes:
        return json.dumps(self._groups.to_json()).encode()

    def write(self, content: bytes) -> None:
        self._groups.replace(json.loads(content))
        self._groups.persist()


class TopicsTable:
    """The topics, table and journal together; deleted topics; the next offsets of queues that lost all their records.

    They are one table because a deletion must arrive whole: a member that had only lost the topic's row would find the
    topic again by its messages, at its next start.
    """

    name = "topics"

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def version(self) -> object:
        """Return how often topics changed, were deleted, or queues lost their files."""
        return self._store.topics.version, self._store.state.changes

    def read(self) -> bytes:
        """Return all of it. A topic is there until its deletion is noted."""
        topics = self._store.topics.rows_with_leaving()  # before the deletions, of which there may be more by now
        return json.dumps({"topics": topics, "ends": self._store.state.ends_json()}).encode()

    def write(self, content: bytes) -> None:
        """Delete the topics that the primary has deleted since, take over the next offsets, and replace all topics."""
        table: dict[str, Any] = json.loads(content)
        # The deletions first: after a crash, a topic without row and without note would be found again by its messages.
        self._note_ends(table["ends"])
        self._store.topics.replace(table["topics"])

    def _note_ends(self, table: dict[str, Any]) -> None:
        deleted = {
            topic: DeletedTopic(
                int(row["physicalOffset"]), {int(at): int(end) for at, end in row["nextOffsets"].items()}
            )
            for topic, row in table["deletedTopics"].items()
        }
        store, state = self._store, self._store.state
        for topic, row in table["keptOffsets"].items():
            for queue_id, next_offset in row.items():
                state.keep_offset(topic, int(queue_id), int(next_offset))
        new = {topic: each for topic, each in deleted.items() if state.deleted.get(topic) != each}
        state.delete(new)
        store.dispatcher.deleted_topics.extend(new)


class OffsetsTable:
    """The committed offsets of all groups, as they are in memory."""

    name = "config/consumerOffset.json"

    def __init__(self, store: MessageStore) -> None:
        self._offsets = store.consumer_offsets

    def version(self) -> object:
        return self._offsets.changes

    def read(self) -> bytes:
        return json.dumps(self._offsets.to_json()).encode()

    def write(self, content: bytes) -> None:
        self._offsets.replace(json.loads(content))
        self._offsets.persist()


class PopTable:
    """The messages in flight of groups that pop, as they are in memory; the file is their journal."""

    name = "flintmq/pop.json.journal"

    def __init__(self, store: MessageStore) -> None:
        self._journal = store.pop_journal
        self._changes = -1
        self._entries: list[PopEntry] = []

    def version(self) -> object:
        """Return the number of changes, after a look at the messages in flight, which belong to the loop."""
        if self._changes != self._journal.changes:
            self._changes = self._journal.changes
            self._entries = list(self._journal.everything())
        return self._changes

    def read(self) -> bytes:
        """Return a journal that begins with what ``version`` saw."""
        return encode_entries(self._entries)

    def write(self, content: bytes) -> None:
        self._journal.replace(content)


class LogBegin:
    """Where the primary's log begins: followers delete what it has deleted."""

    name = "log-begin"

    def __init__(self, store: MessageStore, follow: Callable[[int], None]) -> None:
        self._store = store
        self._follow = follow

    def version(self) -> object:
        return self._store.min_physical_offset

    def read(self) -> bytes:
        return json.dumps(self._store.min_physical_offset).encode()

    def write(self, content: bytes) -> None:
        """Have this member's retention delete what is before."""
        begin = json.loads(content)
        # Not ``isinstance``, for which true is an ``int``.
        if type(begin) is not int or begin < 0:
            raise ValueError(f"the log cannot begin at {begin!r}")
        self._follow(begin)


def tables_of(store: MessageStore, follow: Callable[[int], None]) -> list[Table]:
    """Return the replicated tables of a store. ``follow``: called with where the primary's log begins."""
    return [*archived_tables(store), UsersTable(store), LogBegin(store, follow)]


def archived_tables(store: MessageStore) -> list[Table]:
    """Return the replicated tables that an archive has too: all but the users, and where the log begins."""
    return [
        TopicsTable(store),
        GroupsTable(store),
        PopTable(store),  # before the offsets: newer offsets settle more, older ones would be moved back
        OffsetsTable(store),
        FileTable(store, "config/delayOffset.json", store.delay_offsets.load),
        # Without the rows that it counts: a new primary makes these again from the queue of timed messages.
        FileTable(store, "flintmq/timers/cursor.json"),
        FileTable(store, "flintmq/prepared.json", store.staged_state.load),
    ]


class TableCopy:
    """A follower's copy of the tables: it collects their parts. ``bytes_max`` bounds one table."""

    def __init__(self, tables: Iterable[Table], bytes_max: int) -> None:
        self._tables = {table.name: table for table in tables}
        self.names = frozenset(self._tables)
        self._bytes_max = bytes_max
        self._parts: dict[str, bytearray] = {}

    def forget_parts(self) -> None:
        """Drop the parts of tables that did not arrive completely: a connection sends its tables from the beginning."""
        self._parts.clear()

    def add(self, name: str, part: bytes, *, last: bool) -> Callable[[], None] | None:
        """Take a part; return the function that writes the table if this was its last part, to be called on a thread.

        Raises ``ValueError`` for a table that is too large, or that is unknown: the primary's release is a newer one.
        """
        table = self._tables.get(name)
        if table is None:
            raise ValueError(f"this release knows no table {name!r}; upgrade this member")
        parts = self._parts.setdefault(name, bytearray())
        if len(parts) + len(part) > self._bytes_max:
            raise ValueError(f"table {name} is larger than {self._bytes_max:,} bytes")
        parts += part
        if not last:
            return None
        content = bytes(self._parts.pop(name))

        def write() -> None:
            try:
                table.write(content)
            except SHAPE_ERRORS as error:
                raise ValueError(f"table {name} cannot be read: {error}") from error

        return write


# ---- A follower's disk writes the tables of its primary: the newest version of each, one at a time.

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Change:
    """A version of a table that is not on disk yet. ``connection``: that on which it came."""

    name: str
    connection: int
    first: int
    """Number of the oldest version of the table that is not on disk either."""
    number: int
    write: Callable[[], None]


class TableWriter:
    """The tables that arrive on a connection, until they are on disk. A version that waits gives way to a newer one, so
    memory is bounded whatever the disk does.

    ``on_saved`` is called after a table is on disk, ``on_failed`` if one cannot be written.
    """

    def __init__(
        self,
        tables: TableCopy,
        on_saved: Callable[[], None],
        on_failed: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tables = tables
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._loop = loop
        self._connection = 0
        """Number of the connection whose tables count."""
        self._arrived = 0
        """Number of the newest complete table of this connection."""
        self._saved_names: set[str] = set()
        """Tables of this connection that are on disk, each as it came at first or later."""
        self._waiting: dict[str, _Change] = {}
        self._writing: _Change | None = None
        self._work: asyncio.Future[None] | None = None

    @property
    def saved(self) -> int:
        """Number of a change of this connection that is on disk together with all earlier ones; 0: none is."""
        changes = [*self._waiting.values(), *([self._writing] if self._writing is not None else [])]
        unsaved = [change.first for change in changes if change.connection == self._connection]
        return min(unsaved) - 1 if unsaved else self._arrived

    @property
    def has_all(self) -> bool:
        """Whether each table is on disk as it came on this connection."""
        return self._saved_names == self._tables.names

    def begin(self, connection: int) -> None:
        """Count the tables of a new connection. Those of the one before may still be written."""
        self._connection, self._arrived = connection, 0
        self._saved_names.clear()
        self._tables.forget_parts()

    def drop(self) -> None:
        """Drop what waits, as the tables of another primary replace it."""
        self._waiting.clear()

    def add(self, part: ReplicateTableRequest, body: bytes) -> None:
        """Take a part of a table. Raises ``ValueError``, see ``TableCopy.add``."""
        write = self._tables.add(part.table, body, last=part.last)
        if write is None:
            return
        earlier = self._waiting.get(part.table)
        is_newer = earlier is not None and earlier.connection == self._connection
        first = earlier.first if earlier is not None and is_newer else part.version
        # In the place of the earlier one, so that a table which changes all the time has its turn, and no more.
        self._waiting[part.table] = _Change(part.table, self._connection, first, part.version, write)
        self._arrived = part.version
        self._write_next()

    def _write_next(self) -> None:
        if self._writing is not None or not self._waiting:
            return
        self._writing = self._waiting.pop(next(iter(self._waiting)))
        self._work = self._loop.run_in_executor(None, self._writing.write)
        self._work.add_done_callback(self._written)

    def _written(self, work: asyncio.Future[None]) -> None:
        change, self._writing = self._writing, None
        assert change is not None
        # The connection may have ended during the write, and the next primary counts its tables from 0.
        is_current = change.connection == self._connection
        error = work.exception()
        if error is not None:
            log.error("cannot take over a table of the primary: %s", error, exc_info=not _is_known(error))
            if is_current:
                # The next connection sends all tables again; nothing of this one counts any more.
                self.begin(0)
                self._on_failed()
        elif is_current:
            self._saved_names.add(change.name)
            self._on_saved()
        self._write_next()

    async def finish(self) -> None:
        """Return when all that has arrived is on disk, or could not be written."""
        while self._work is not None and self._writing is not None:
            await asyncio.wait([self._work])
            # ``_written`` is called in the same turn, perhaps after this task.
            await asyncio.sleep(0)


def _is_known(error: BaseException) -> bool:
    return isinstance(error, OSError | ValueError | FlintError)
