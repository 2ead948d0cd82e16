"""Every file layer call of a small run fails once, with either error; after each call that needs space, the disk stays
full for a while. Whatever becomes of the broker, acknowledged messages are there."""

from __future__ import annotations

import contextlib
import copy
import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flintmq.broker.store import StoreFailed
from flintmq.broker.store.log.commitlog import CommitLog
from tests.fault.hand_broker import HandBroker
from tests.fault.harness.failing_files import WRITTEN_ONCE, FailingFiles
from tests.fault.harness.hooked_files import OPERATIONS
from tests.fault.power_cut import Everything, Nothing, PowerCutFiles, TornLog, write_tree
from tests.fault.small_store import SMALLEST, SmallMessages
from tests.store_tools import FOREVER, kill, reopen

FULL_STEPS = 4
"""Number of steps for which a disk stays full."""
FILLS = ("open", "allocate", "write", "rename")
"""Operations that a full disk refuses, from the first on."""
NEED_NO_ROOM = ("resize", "unlink")
MAY_BE_TRIED_AGAIN = ((errno.ENOSPC, "sync_folder"), (errno.ENOSPC, "rename"))
"""A name for which there is no space: nothing of the file was used yet."""


class FailingDisk(FailingFiles, PowerCutFiles):
    """File system on which one call fails; a failed write has written the first half. Unsynced data may be lost."""

    def __init__(
        self, root: Path, operation: str = "none", nth: int = 0, number: int = 0, *, fills: bool = False
    ) -> None:
        PowerCutFiles.__init__(self, root, FOREVER)
        FailingFiles.__init__(self, root, operation, nth, number, fills=fills)
        self.calls: list[tuple[str, str]] = []
        """Operation and path of each call."""

    def before(self, operation: str, path: str) -> None:
        """Note the call, and fail if it is the one."""
        self.calls.append((operation, path))
        super().before(operation, path)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Write half of the data if the call fails."""
        try:
            super().write(fd, data, at)
        except OSError:
            PowerCutFiles.write(self, fd, memoryview(data)[: len(data) // 2], at)
            raise


class Begun:
    """A store that was killed with a torn log and without an index, so that its start has work to do."""

    def __init__(self, folder: Path) -> None:
        path = folder / "begun"
        life = HandBroker(PowerCutFiles(path, FOREVER), path, SMALLEST)
        self.messages = SmallMessages()
        life.store.open()
        for queue in (0, 1, 0):
            life.produce("orders", queue, self.messages.take(5, queue))
            life.checkpoint()
        life.produce("orders", 1, self.messages.take(2, 1))
        torn = life.store.write_offset + 60
        life.append("orders", 0, self.messages.take(1, 0))
        del life.written["orders", 0][-1]
        self.tree = life.files.remains(TornLog(torn, Everything()))
        self.tree = {p: c for p, c in self.tree.items() if p.parts[0] != "index"}
        self.life = life
        kill(life.store)
        path = folder / "undisturbed"
        write_tree(path, self.tree)
        ran = run(self, path, FailingDisk(path))
        assert (ran.broker.ended, ran.broker.refused) == (None, 0)
        assert ran.broker.store.min_physical_offset > 0
        self._calls = ran.files.calls

    def each(self, operation: str, number: int) -> range:
        """Return the numbers of the calls of an undisturbed run at which a fault may happen, from 1 on."""
        files = FailingFiles(Path(), operation, 0, number)
        return range(1, 1 + sum(files.can_fail(*call) for call in self._calls))


def small_run(broker: HandBroker, messages: SmallMessages) -> list[Callable[[], object]]:
    """Run a start, a frame across three log files and other frames, changes of tables, retention, and a stop."""
    return [
        broker.store.open,
        broker.allocate,
        lambda: broker.produce("bills", 0, messages.take(2, 0)),
        lambda: broker.produce("orders", 0, messages.take(4, 0)),
        broker.checkpoint,
        lambda: broker.produce("orders", 1, messages.take(40, 1)),
        broker.allocate,
        lambda: broker.produce("bills", 0, messages.take(2, 0)),
        lambda: broker.delete("bills"),
        broker.checkpoint,
        broker.expire,
        lambda: broker.produce("orders", 0, messages.take(3, 0)),
        broker.store.close,
    ]


@dataclass
class Ran:
    """Result of a small run with a fault. ``step``: the step in which it happened."""

    broker: HandBroker
    files: FailingDisk
    step: int
    last: int
    failure: BaseException | None = None
    """Reason why the store stopped writing."""

    @property
    def serving(self) -> bool:
        """Return whether the fault happened between the start and the stop."""
        return 0 < self.step < self.last


def run(begun: Begun, folder: Path, files: FailingDisk) -> Ran:
    """Run on ``files``. A full disk gets space some steps later, before the stop at the latest."""
    broker = HandBroker(files, folder, SMALLEST)
    broker.remember(begun.life)
    works = small_run(broker, copy.copy(begun.messages))
    ran = Ran(broker, files, len(works), len(works) - 1)
    refused = -1
    for step, work in enumerate(works):
        if files.full and step == min(ran.step + FULL_STEPS, ran.last):
            files.make_room()
            refused = broker.refused
            broker.do(broker.produce_refused)
        broker.do(work)
        if files.failed:
            ran.step = min(ran.step, step)
        if files.full and broker.ended is None and step < ran.last:
            broker.read()
    assert refused in (-1, broker.refused), "a request is refused although there is space"
    if broker.ended is not None:
        ran.failure = broker.store.failed
        if ran.failure is not None:
            broker.assert_no_append_is_taken()
        kill(broker.store)
    return ran


def judge(ran: Ran, number: int) -> None:
    """Check that the broker ended if it had to, and stayed up if it could."""
    operation, path = ran.files.failed.split()
    ended = ran.broker.ended
    if path.startswith(WRITTEN_ONCE) and operation in ("sync_data", "sync_folder", "rename"):
        assert ended is not None or (number, operation) in MAY_BE_TRIED_AGAIN, "lost bytes are not written again"
    if operation == "sync_data" and path.startswith("commitlog/") and ran.serving:
        assert isinstance(ended, StoreFailed)
        assert ran.failure is ended
        ran.broker.assert_no_producer_is_acknowledged()
    if number == errno.ENOSPC and operation in FILLS and ran.serving:
        assert ended is None, f"the broker must survive a full disk, but: {ended!r}"
    if number == errno.ENOSPC and operation in FILLS and ran.step == ran.last and ended is not None:
        assert (ran.broker.store.path / "abort").exists(), "an unclean stop must not look like a clean one"
    if number == errno.ENOSPC and ran.step == 0 and ended is not None:
        assert isinstance(ended, StoreFailed)
        assert "is full" in str(ended)


def check_remains(ran: Ran, folder: Path) -> None:
    """Check that everything acknowledged is there: in the page cache, as after the broker's end, and on the disk
    alone."""
    left = ran.files.remains(Nothing())
    for tree in (None, left):
        if tree is not None:
            shutil.rmtree(folder)
            write_tree(folder, tree)
        store, _ = reopen(folder, SMALLEST)
        try:
            ran.broker.check(store)
        finally:
            kill(store)


def fail_call(begun: Begun, folder: Path, operation: str, number: int, nth: int) -> Ran:
    """Fail the ``nth`` call of an operation. Raises AssertionError for a broken promise or a missing fault."""
    path = folder / "store"
    write_tree(path, begun.tree)
    files = FailingDisk(path, operation, nth, number, fills=number == errno.ENOSPC and operation in FILLS)
    try:
        ran = run(begun, path, files)
        assert files.failed, "the fault never came"
        judge(ran, number)
        check_remains(ran, path)
    except Exception as error:
        error.add_note(f"{errno.errorcode[number]} at the {nth}. {operation}: {files.failed}")
        raise
    finally:
        shutil.rmtree(path)
    return ran


def fail_each_call(begun: Begun, folder: Path, operation: str, number: int) -> list[Ran]:
    """Fail the n-th call of an operation, for every n."""
    return [fail_call(begun, folder, operation, number, nth) for nth in begun.each(operation, number)]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """Return the store in which every run begins."""
    return Begun(tmp_path_factory.mktemp("begun"))


@pytest.mark.parametrize(
    ("operation", "name"),
    [(each, "EIO") for each in OPERATIONS] + [(each, "ENOSPC") for each in OPERATIONS if each not in NEED_NO_ROOM],
)
def test_acknowledged_messages_survive_a_failure_of_any_call(
    begun: Begun, memory_path: Path, operation: str, name: str
) -> None:
    rans = fail_each_call(begun, memory_path, operation, getattr(errno, name))
    if name == "ENOSPC" and operation in FILLS:
        assert any(ran.broker.refused for ran in rans)
    else:
        assert any(ran.broker.ended for ran in rans)


# The sweep itself finds a fault that never happens and a flush that takes an error for success.


def test_a_fault_that_never_happens_is_reported(begun: Begun, memory_path: Path) -> None:
    behind = begun.each("rename", errno.EIO).stop
    with pytest.raises(AssertionError, match="the fault never came"):
        fail_call(begun, memory_path, "rename", errno.EIO, behind)


def test_a_flush_that_ignores_errors_is_found(begun: Begun, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(log: CommitLog) -> int:
        with contextlib.suppress(OSError):
            real_flush(log)
        log.flushed_offset = log.write_offset
        return log.flushed_offset

    real_flush = CommitLog.flush
    monkeypatch.setattr(CommitLog, "flush", flush)
    with pytest.raises(AssertionError, match="lost bytes are not written again"):
        fail_each_call(begun, memory_path, "sync_data", errno.EIO)
