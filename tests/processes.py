"""What test processes share: the order of the tests, slow ones first, those left out, those that failed beside others,
and the ports of brokers.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PORTS = range(10_000, 15_000, 2)
"""Ports of brokers, each followed by the port of its metrics. They are below the system's ephemeral ports, ten thousand
of which one test uses, so that a restarted broker finds its port free. The fault harness uses those from 15,000 on."""
SPARK_FOLDER = Path(__file__).parent / "spark"
UNSTABLE = os.environ.pop("FLINTMQ_UNSTABLE", "")
"""File that gets the names of tests that failed beside others and passed alone; empty: such a test fails the run."""
UNSTABLE_MAX = 3
_LEFT_OUT = pytest.StashKey[int]()
_LEFT_OUT_KEY = "flintmq_left_out"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that share the Spark session first, then the files with slow tests, so that none is left for the
    end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (SPARK_FOLDER not in item.path.parents, item.path not in slow))


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected out of garbage collections: with millions of objects each that a test
    or Python begins would take some tenths of a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process, and all that share the Spark session in one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.split("::", 1)[0]
            return "spark" if file.startswith("tests/spark/") else file

    return ByFile(config, log)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count the long tests that are left out."""
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.config.stash[_LEFT_OUT] = item.config.stash.get(_LEFT_OUT, 0) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Learn from a worker process how many tests it left out; each worker collects all tests."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get(_LEFT_OUT_KEY, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many long tests were left out."""
    if count := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} long tests were left out: ./scripts/test-long runs them")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Run a few tests that failed again, alone, if ``UNSTABLE`` is set: others on a busy machine may be the cause."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT_KEY] = session.config.stash.get(_LEFT_OUT, 0)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not UNSTABLE or exitstatus != pytest.ExitCode.TESTS_FAILED or reporter is None:
        return
    failed = sorted({report.nodeid for kind in ("failed", "error") for report in reporter.stats.get(kind, ())})
    with open(UNSTABLE, "a+", encoding="utf-8") as file:
        file.seek(0)
        if len(file.readlines()) + len(failed) > UNSTABLE_MAX:
            return
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *failed]
        again = subprocess.run(command, cwd=session.config.rootpath, capture_output=True, text=True)
        reporter.write_line(f"\nagain, alone:\n{again.stdout}{again.stderr}")
        if again.returncode == 0:
            session.exitstatus = pytest.ExitCode.OK
            file.writelines(f"{name}\n" for name in failed)


def _own_ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    # In an order of this process's own: two test runs may share a machine.
    return itertools.cycle(random.SystemRandom().sample(own, len(own)))


_ports = _own_ports()


def suspend(pid: int) -> None:
    """Send SIGSTOP and wait until every thread of the process has stopped: one that runs may still do some work."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    while any(state_of(thread) not in "TtZX" for thread in threads.iterdir()):
        time.sleep(0.001)


def state_of(thread: Path) -> str:
    """Return the state of a thread by its folder in /proc: one letter; X if it is gone."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def free_port() -> int:
    """Return a port on loopback that no other test process uses and that is free together with the next one."""
    for port in itertools.islice(_ports, len(PORTS)):
        if _is_free(port) and _is_free(port + 1):
            return port
    raise AssertionError(f"no two ports in {PORTS} are free on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
