"""Resources that test processes share: the order of the tests, slow ones first, and the ports of brokers."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PORTS = range(10_000, 15_000, 2)
"""Ports of brokers, each followed by the port of its metrics. They are below the system's ephemeral ports, ten thousand
of which one test uses, so that a restarted broker finds its port free. The fault harness uses those from 15,000 on."""
SPARK_FOLDER = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that share the Spark session first, then the files with slow tests, so that none is left for the
    end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (SPARK_FOLDER not in item.path.parents, item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process, and all that share the Spark session in one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.split("::", 1)[0]
            return "spark" if file.startswith("tests/spark/") else file

    return ByFile(config, log)


def _own_ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    # In an order of this process's own: two test runs may share a machine.
    return itertools.cycle(random.SystemRandom().sample(own, len(own)))


_ports = _own_ports()


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
