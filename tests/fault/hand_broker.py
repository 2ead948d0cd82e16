"""A broker without a network, whose services are worked by hand: in one thread, and each time in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.background.checkpoint import CheckpointService
from flintmq.broker.background.flush import GroupCommitService
from flintmq.broker.background.preallocation import AllocateMappedFileService
from flintmq.broker.background.reput import ReputMessageService, Touched
from flintmq.broker.store import StoreFailed
from flintmq.protocol.errors import BrokerError, ServiceNotAvailable
from tests.store_tools import Message, make_batch, matches, pull_all

from .power_cut import PowerCutFiles
from .power_cut_life import GROUP, Frame, Life, Row


def _call(call: Callable[..., Any], *arguments: Any) -> None:
    """What the event loop does soon."""
    call(*arguments)


class HandBroker(Life):
    """A life that goes through the broker's services, and meets errors as the broker does."""

    def begin(self, files: PowerCutFiles, path: Path) -> None:
        """See ``Life``. The services begin anew."""
        super().begin(files, path)
        self.refused = 0
        """Appends and changes of topics that were answered with an error, because nothing of them was done."""
        self._unsent: list[Frame] = []
        """What was refused."""
        self.ended: Exception | None = None
        """What ended the broker."""
        self._allocation = AllocateMappedFileService(self.store, _call, self._end)
        self._flush = GroupCommitService(self.store, _call, self._end)
        self._reput = ReputMessageService(self.store, _call, self._show, self._end)
        self._checkpoint = CheckpointService(self.store, _call, self._end)

    def _end(self, name: str, error: BaseException) -> None:
        raise error  # to who works the services: see ``do``

    def _show(self, touched: Touched) -> None:
        for topic, queue, max_offset in touched:
            if topic in self.topics:
                self.served[topic, queue] = max_offset

    def do(self, work: Callable[[], object]) -> None:
        """One piece of work, while the broker lives. What would end a service, or a start, ends it."""
        if self.ended is None:
            try:
                work()
            except (OSError, StoreFailed) as error:
                self.ended = error

    def _log(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((self.store.path / "commitlog").iterdir()))

    def append(self, topic: str, queue: int, messages: Sequence[Message]) -> None:
        """See ``Life``. One that is refused leaves the log as it was."""
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
                raise AssertionError("an append says nothing to its producer") from error
            self.refused += 1  # the topic could not be made
            self.store.topics.remove(topic)

    def _check_refused(self, refusal: ServiceNotAvailable, end_offset: int, log: bytes) -> None:
        """It says that nothing was written, and that is so; a next file may have been made."""
        assert "nothing was written" in str(refusal)
        assert self.store.write_offset == end_offset
        after = self._log()
        assert after[: len(log)] == log
        assert not any(after[len(log) :])

    def delete(self, topic: str) -> None:
        """See ``Life``. Where it cannot be written it is taken back."""
        config = self.store.topics.get(topic)
        if topic not in self.topics or config is None:
            return
        try:
            super().delete(topic)
        except OSError:
            self.refused += 1
            self.store.topics.put(config)

    def flush(self) -> None:
        """What the flush service acknowledges is acknowledged; everybody has an answer."""
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
        """As a producer does, to the acknowledgement; and it is shown."""
        self.append(topic, queue, messages)
        self.flush()
        self.dispatch()

    def produce_again(self) -> None:
        """What was refused is sent once more."""
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            self.produce(frame.topic, frame.queue, frame.messages)

    def dispatch(self, chunk_bytes: int = 0) -> None:
        """On the loop; where the disk is full by the thread, while it comes on."""
        self._reput.step()
        reached = -1
        while self._reput.do_once() and self.store.reput_offset > reached:
            reached = self.store.reput_offset

    def allocate(self) -> None:
        """Work ahead, all there is to do."""
        while self._allocation.do_once():
            pass

    def checkpoint(self) -> None:
        """Put queues, index and the groups' progress on disk."""
        offsets: dict[Row, int] = dict(self.served)
        for (topic, queue), offset in offsets.items():
            self.committed.pop((topic, queue), None)
            self.store.consumer_offsets.commit(GROUP, topic, queue, offset)
        self._checkpoint.do_once()
        if not self.store.consumer_offsets.dirty:
            self.committed.update(offsets)

    def read(self) -> None:
        """Everything that was shown can still be read."""
        for (topic, queue), served in self.served.items():
            records = [record for record in pull_all(self.store, topic, queue) if record.queue_offset < served]
            assert len(records) == served - self.store.min_offset(topic, queue, False)
            assert all(map(matches, records, self.kept(topic, queue, records)))

    def assert_no_append_is_taken(self) -> None:
        """The store stopped writing, also where the disk works again."""
        with pytest.raises(ServiceNotAvailable, match="stopped writing"):
            self.store.append(next(iter(self.store.topics)), 0, make_batch([Message(b"more")]))

    def assert_nobody_is_acknowledged(self) -> None:
        """Nor is who comes later and waits for a flush that was given up."""
        answers: list[BrokerError | None] = []
        self._flush.wait_for(self.store.write_offset, answers.append)
        assert isinstance(answers[0], ServiceNotAvailable)
