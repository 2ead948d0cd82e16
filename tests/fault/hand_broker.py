"""A broker without a network whose services are driven by hand: in one thread, and always in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.background.flush import GroupCommitService
from flintmq.broker.background.services import (
    AllocateMappedFileService,
    CheckpointService,
    ReputMessageService,
    Touched,
)
from flintmq.broker.store import StoreFailed
from flintmq.protocol.errors import BrokerError, ServiceNotAvailable
from tests.store_tools import Message, make_batch, matches, pull_all

from .power_cut import PowerCutFiles
from .power_cut_life import GROUP, Frame, Life, Row


def _call(call: Callable[..., Any], *arguments: Any) -> None:
    """Run the call at once, in place of the event loop."""
    call(*arguments)


class HandBroker(Life):
    """A life that uses the broker's services and handles errors as the broker does."""

    def begin(self, files: PowerCutFiles, path: Path) -> None:
        """Override ``Life.begin``: start the services again too."""
        super().begin(files, path)
        self.refused = 0
        """Number of appends and topic changes that were refused because they had no effect."""
        self._unsent: list[Frame] = []
        """Refused frames."""
        self.ended: Exception | None = None
        """Error that ended the broker."""
        self._allocation = AllocateMappedFileService(self.store, _call, self._end)
        self._flush = GroupCommitService(self.store, _call, self._end)
        self._reput = ReputMessageService(self.store, _call, self._show, self._end)
        # Without pauses, whose length depends on the speed of the machine: each life must make the same calls.
        self._checkpoint = CheckpointService(self.store, _call, self._end, sync_share=0)

    def _end(self, name: str, error: BaseException) -> None:
        raise error  # raised to the caller that drives the services: see ``do``

    def _show(self, touched: Touched) -> None:
        for topic, queue, max_offset in touched:
            if topic in self.topics:
                self.served[topic, queue] = max_offset

    def do(self, work: Callable[[], object]) -> None:
        """Do one piece of work while the broker lives. An error that would end a service, or a start, ends it."""
        if self.ended is None:
            try:
                work()
            except (OSError, StoreFailed) as error:
                self.ended = error

    def _log(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((self.store.path / "commitlog").iterdir()))

    def append(self, topic: str, queue: int, messages: Sequence[Message]) -> None:
        """Override ``Life.append``: a refused append leaves the log as it was."""
        end_offset, log = self.store.write_offset, self._log()
        try:
            super().append(topic, queue, messages)
        except ServiceNotAvailable as refusal:
            self.refused += 1
            self.unfinished = None
            self._unsent.append(Frame(topic, queue, messages))
            self._check_refused(refusal, end_offset, log)
        except OSError as error:
            if topic not in self.in_doubt:
                raise AssertionError("the append gave its producer no result") from error
            self.refused += 1  # the topic could not be created
            self.store.topics.remove(topic)

    def _check_refused(self, refusal: ServiceNotAvailable, end_offset: int, log: bytes) -> None:
        """Check that the refusal says that nothing was written, and that this is true; a next file may have been
        created."""
        assert "nothing was written" in str(refusal)
        assert self.store.write_offset == end_offset
        after = self._log()
        assert after[: len(log)] == log
        assert not any(after[len(log) :])

    def delete(self, topic: str) -> None:
        """Override ``Life.delete``: a deletion that cannot be written is undone."""
        config = self.store.topics.get(topic)
        if topic not in self.topics or config is None:
            return
        try:
            super().delete(topic)
        except OSError:
            self.refused += 1
            self.store.topics.put(config)

    def flush(self) -> None:
        """Note the acknowledgements of the flush service; every producer must have a response."""
        end_offset = self.store.write_offset
        answers: list[BrokerError | None] = []
        self._flush.wait_for(end_offset, answers.append)
        self._flush.wake()
        try:
            self._flush.do_once()
        finally:
            (answer,) = answers
            assert answer is None or "may or may not be stored" in str(answer)
            if answer is None:
                self.synced |= {
                    each.physical_offset
                    for row in self.written.values()
                    for each in row
                    if each.physical_offset < end_offset
                }

    def produce(self, topic: str, queue: int, messages: Sequence[Message]) -> None:
        """Send like a producer, up to the acknowledgement, and make the messages visible."""
        self.append(topic, queue, messages)
        self.flush()
        self.dispatch()

    def produce_refused(self) -> None:
        """Send the refused frames once more."""
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            self.produce(frame.topic, frame.queue, frame.messages)

    def dispatch(self, chunk_bytes: int = 0) -> None:
        """Dispatch on the loop; if the disk is full, on the thread, until it continues."""
        self._reput.step()
        reached = -1
        while self._reput.do_once() and self.store.reput_offset > reached:
            reached = self.store.reput_offset

    def allocate(self) -> None:
        """Allocate ahead as much as possible."""
        while self._allocation.do_once():
            pass

    def checkpoint(self) -> None:
        """Put queues, index and the groups' offsets on disk."""
        offsets: dict[Row, int] = dict(self.served)
        for (topic, queue), offset in offsets.items():
            self.committed.pop((topic, queue), None)
            self.store.consumer_offsets.commit(GROUP, topic, queue, offset)
        self._checkpoint.do_once()
        if not self.store.consumer_offsets.dirty:
            self.committed.update(offsets)

    def read(self) -> None:
        """Check that every visible message can still be read."""
        for (topic, queue), served in self.served.items():
            records = [record for record in pull_all(self.store, topic, queue) if record.queue_offset < served]
            assert len(records) == served - self.store.queue_reads.min_offset(topic, queue, hot=False)
            assert all(map(matches, records, self.kept(topic, queue, records)))

    def assert_no_append_is_taken(self) -> None:
        """Check that the store stopped writing, even if the disk works again."""
        with pytest.raises(ServiceNotAvailable, match="stopped writing"):
            self.store.append(next(iter(self.store.topics)), 0, make_batch([Message(b"more")]))

    def assert_no_producer_is_acknowledged(self) -> None:
        """Check that no later producer that waits for the abandoned flush is acknowledged."""
        answers: list[BrokerError | None] = []
        self._flush.wait_for(self.store.write_offset, answers.append)
        assert isinstance(answers[0], ServiceNotAvailable)
