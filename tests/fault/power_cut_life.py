"""The life of a store on a machine whose power may be cut: its operations, its promises, and the check that a recovered
store keeps them."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flintmq.broker.store import MessageStore, StoreSettings, TopicConfig
from flintmq.protocol.storage.layout import PRE_BLANK_SIZE, UNIT
from flintmq.protocol.storage.record import Record
from tests.store_tools import FOREVER, HOST, Message, Sent, find, make_batch, matches, pull_all, sent_of

from .power_cut import PowerCutFiles

QUEUES = 2
GROUP = "group"
EVERY_KEY = "all"
"""Key of each message of a queue, followed by the queue's number; each message has another key of its own."""

Row = tuple[str, int]
"""A topic and a queue."""


@dataclass
class Frame:
    """A frame that is being appended: a prefix of its messages may be written."""

    topic: str
    queue: int
    messages: Sequence[Message]


class Life:
    """A store at work until the power is cut, and its promises."""

    def __init__(self, files: PowerCutFiles, path: Path, settings: StoreSettings) -> None:
        self._settings = settings
        self.begin(files, path)
        self.written: dict[Row, list[Sent]] = {}
        """Messages of each queue, in order."""
        self.unfinished: Frame | None = None
        """Frame whose append the power cut may have interrupted."""
        self.synced: set[int] = set()
        """Physical offsets of messages that were acknowledged after a sync."""
        self.served: dict[Row, int] = {}
        """Queue offset up to which consumers saw each queue."""
        self.topics: set[str] = set()
        """Topics whose creation was confirmed."""
        self.deleted: set[int] = set()
        """Physical offsets of messages whose topic's deletion was confirmed."""
        self.in_doubt: set[str] = set()
        """Topics whose creation or deletion was in progress."""
        self.named: set[str] = set()
        """Every topic that ever existed."""
        self.committed: dict[Row, int] = {}
        """Committed offsets of a group that were confirmed."""
        self.expiring_below = 0
        """Messages below this physical offset may be missing: retention was about to delete them."""

    def begin(self, files: PowerCutFiles, path: Path) -> None:
        """Open the store at ``path``; its content counts as durable."""
        self.files = files
        self.store = MessageStore(path, self._settings, store_host=HOST, files=files)

    def remember(self, other: Life) -> None:
        """Take over the promises that another life made for the same store."""
        for name in (
            "written",
            "synced",
            "served",
            "topics",
            "deleted",
            "in_doubt",
            "named",
            "committed",
            "expiring_below",
        ):
            setattr(self, name, copy.deepcopy(getattr(other, name)))

    def promises(self) -> Hashable:
        """Return a value that changes with every promise."""
        topics = frozenset(self.topics), frozenset(self.in_doubt)
        return (
            len(self.synced),
            len(self.deleted),
            *topics,
            *sorted(self.served.items()),
            *sorted(self.committed.items()),
        )

    def append(self, topic: str, queue: int, messages: Sequence[Message]) -> None:
        """Append the messages in one frame; create the topic if necessary."""
        self.named.add(topic)
        config = self.store.topics.get(topic)
        if config is None:
            self.in_doubt.add(topic)
            config = TopicConfig(topic, QUEUES, QUEUES)
            self.store.topics.put(config)
            self.store.topics.persist()
            self.in_doubt.discard(topic)
            self.topics.add(topic)
        self.unfinished = Frame(topic, queue, messages)
        sent = sent_of(self.store.append(config, queue, make_batch(messages)), topic, queue, messages)
        self.unfinished = None
        self.written.setdefault((topic, queue), []).extend(sent)

    def flush(self) -> None:
        """Flush the log: all appended messages are acknowledged."""
        flushed = self.store.flush()
        self.synced |= {
            each.physical_offset for row in self.written.values() for each in row if each.physical_offset < flushed
        }

    def dispatch(self, chunk_bytes: int = 0) -> None:
        """Dispatch, and make the messages visible."""
        store = self.store
        while store.reput_offset < store.dispatchable_offset:
            for topic, queue, max_offset in store.dispatch(store.dispatchable_offset, chunk_bytes):
                if topic in self.topics:
                    self.served[topic, queue] = max_offset

    def commit(self, topic: str, queue: int) -> None:
        """Commit the offset of everything visible in a queue."""
        shown = self.store.queues.get(topic, queue)
        if shown is not None and topic in self.topics:
            self.committed.pop((topic, queue), None)
            self.store.consumer_offsets.commit(GROUP, topic, queue, shown.max_offset)
            self.store.consumer_offsets.persist()
            self.committed[topic, queue] = shown.max_offset

    def delete(self, topic: str) -> None:
        self.in_doubt.add(topic)
        self.topics.discard(topic)
        self.store.topics.remove(topic)
        self.store.delete_topic(topic)
        self.in_doubt.discard(topic)
        for queue in range(QUEUES):
            self.deleted |= {each.physical_offset for each in self.written.pop((topic, queue), [])}
            self.committed.pop((topic, queue), None)
            self.served.pop((topic, queue), None)

    def expire(self) -> None:
        """Let retention delete the oldest log file, if everything after it is dispatched and on disk."""
        self.expiring_below = self.store.min_physical_offset + self.store.settings.commitlog_file_bytes
        self.store.expire(1)

    def unacknowledged_offsets(self) -> list[int]:
        """Return the start of each record that is written and not acknowledged, and the end of the last."""
        begins = {each.physical_offset for row in self.written.values() for each in row}
        return sorted({*(begins - self.synced), self.store.write_offset})

    # The check of a recovered store.

    def check(self, found: MessageStore) -> None:
        """Check that every promise is kept, and that nothing else is there."""
        check_units(found)
        assert found.reput_offset == found.write_offset == found.flushed_offset
        for topic in self.named - self.in_doubt:
            config = found.topics.get(topic)
            assert (config is not None) == (topic in self.topics), topic
            for queue in range(config.queues) if config is not None else ():
                self._check_queue(found, topic, queue)

    def _check_queue(self, found: MessageStore, topic: str, queue: int) -> None:
        """Check that the queue holds the messages written to it, except for an unsynced end."""
        records = list(pull_all(found, topic, queue))
        written = self.kept(topic, queue, records)
        assert not self.deleted & {record.physical_offset for record in records}
        assert all(matches(record, each) for record, each in zip(records, written, strict=False)), (topic, queue)
        lost = {each.physical_offset for each in written[len(records) :]}
        assert not lost & self.synced, f"acknowledged messages of {topic} {queue} are lost: {lost & self.synced}"
        if found.settings.flush_policy == "sync":
            end, served = found.queue_reads.max_offset(topic, queue), self.served.get((topic, queue), 0)
            assert end >= served, f"{topic} {queue} was visible up to {served}, and ends at {end}"
        offsets = [record.physical_offset for record in records]
        assert [each.physical_offset for each in find(found, topic, f"{EVERY_KEY}-{queue}")] == offsets[::-1]
        for record in records[-5:]:
            key = record.property_map()["KEYS"].split()[0]
            assert [each.physical_offset for each in find(found, topic, key)] == [record.physical_offset]
        committed = self.committed.get((topic, queue))
        if committed is not None:
            kept = found.consumer_offsets.committed(GROUP, topic)[queue]
            assert kept == min(committed, found.queue_reads.max_offset(topic, queue))

    def kept(self, topic: str, queue: int, records: Sequence[Record]) -> list[Sent]:
        """Return the messages written to a queue, with those messages of the unfinished frame that are in the store,
        and without those that retention deleted."""
        first = records[0].queue_offset if records else FOREVER
        written = [
            each
            for each in self.written.get((topic, queue), [])
            if each.physical_offset >= self.expiring_below or each.queue_offset >= first
        ]
        frame = self.unfinished
        if frame is not None and (frame.topic, frame.queue) == (topic, queue):
            for record, message in zip(records[len(written) :], frame.messages, strict=False):
                at = record.queue_offset, record.physical_offset, record.store_timestamp
                written.append(Sent(topic, queue, *at, message))
        assert len(records) <= len(written), f"{topic} {queue} has more than was written"
        return written


def check_units(store: MessageStore) -> None:
    """Check that no unit points past the log's end."""
    for path in (store.path / "consumequeue").rglob("0*"):
        for physical_offset, size, _ in UNIT.unpack_all(path.read_bytes() if path.is_file() else b""):
            assert size == PRE_BLANK_SIZE or physical_offset + size <= store.write_offset, path
