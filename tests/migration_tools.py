"""Followers of masters, as processes and in this one, and comparisons of a follower's log with its master's."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from flintmq.broker.migration.follower import MasterFollower, opened_follower
from flintmq.broker.store import MessageStore
from tests.fake_master import FakeMaster
from tests.forked import FORKS
from tests.group_tools import until
from tests.store_tools import Sent, append, dispatch, open_store, plain
from tests.tools_runs import TIMEOUT_S

WAIT_S = 120.0


class Following:
    """A ``flintmq-broker follow-rocketmq`` process."""

    def __init__(self, master: str, store: Path, settings: Mapping[str, object], log: Path) -> None:
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        self._log = log
        with log.open("w") as output:
            arguments = ["follow-rocketmq", master, "--store", str(store), *options]
            self.process = FORKS.start(arguments, output.fileno(), output.fileno())

    @property
    def said(self) -> str:
        """Return its output so far."""
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""
        until(lambda: text in self.said or self.process.poll() is not None, f"{text!r} in {self.said}")
        assert text in self.said, self.said

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def ended(self) -> tuple[int, str]:
        """Wait until it ends by itself; return exit code and output."""
        return self.process.wait(TIMEOUT_S), self.said


@contextmanager
def following(master: str, store: Path, settings: Mapping[str, object], log: Path) -> Iterator[Following]:
    """Run ``follow-rocketmq``; kill it at the end if it still runs."""
    running = Following(master, store, settings, log)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def log_content(store: Path) -> bytes:
    """Return the bytes of a store's log, without the zeros that were never written."""
    files = sorted(path for path in (store / "commitlog").glob("*") if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def until_equal(master: Path, follower: Path) -> None:
    """Wait until both logs have the same bytes."""
    until(lambda: log_content(follower) == log_content(master), f"{follower} has the log of {master}")


# ---- in this process ----


def log_bytes(store: MessageStore) -> bytes:
    """Return a store's log."""
    files = b"".join(file.array().tobytes() for file in store.commitlog.queue.files)
    return files[: store.write_offset - store.min_physical_offset]


class Source:
    """A store whose log a master serves, and what was put into it."""

    def __init__(self, path: Path) -> None:
        self.store = open_store(path)
        self.sent: list[Sent] = []

    def put(self, count: int, *, size: int = 300, queue: int = 0) -> bytes:
        """Append messages; return the log's bytes that are new."""
        begin = self.store.write_offset
        for message in plain(count, size=size, first=len(self.sent)):
            self.sent += append(self.store, "orders", queue, [message])
        dispatch(self.store)
        return log_bytes(self.store)[begin:]


async def soon(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - as ``group_tools.until``
            await asyncio.sleep(0.002)


@asynccontextmanager
async def follower_of(master: FakeMaster, store: MessageStore) -> AsyncIterator[list[str]]:
    """Run a follower; yields the lines that it prints."""
    said: list[str] = []
    stop = asyncio.Event()
    with opened_follower(store, lambda *progress: None):
        run = asyncio.create_task(MasterFollower(store, "127.0.0.1", master.port, said.append).run(stop))
        try:
            yield said
            stop.set()
            await run
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


async def follow_to_end(master: FakeMaster, store: MessageStore) -> list[str]:
    """Follow until the store's log is the master's; return what was printed."""
    async with follower_of(master, store) as said:
        await soon(lambda: store.flushed_offset == master.log_end)
    return said


async def follow_until_refused(master: FakeMaster, store: MessageStore, error: type[Exception], text: str) -> None:
    """Follow until the run ends with an error."""
    with pytest.raises(error, match=text), opened_follower(store, lambda *progress: None):
        async with asyncio.timeout(WAIT_S):
            await MasterFollower(store, "127.0.0.1", master.port, lambda line: None).run(asyncio.Event())
