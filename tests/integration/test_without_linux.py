"""A broker without the system calls that only Linux has, as on macOS: for development, it starts and keeps messages."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.testing import LocalBroker
from tests.processes import free_port

WITHOUT_LINUX = """
import os, pathlib, resource, socket, sys, time
for module, names in (
    (os, "posix_fallocate fdatasync posix_fadvise POSIX_FADV_WILLNEED sched_getaffinity RWF_NOWAIT eventfd "
         "eventfd_read eventfd_write EFD_CLOEXEC"),
    (socket, "TCP_KEEPIDLE TCP_USER_TIMEOUT"),
    (time, "CLOCK_BOOTTIME"),
):
    for name in names.split():
        delattr(module, name)

def setrlimit(which, limits, set_limit=resource.setrlimit):
    if limits[0] > 10_240:
        raise ValueError("current limit exceeds maximum limit")
    set_limit(which, limits)

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit = setrlimit
import flintmq.broker.handlers.broker_admin as runtime
import flintmq.broker.metrics.collector as process
runtime._STATM = process._PROC = pathlib.Path("/this-system-has-no-proc")
process._FDS = "/this-system-has-no-proc/self/fd"

from flintmq.broker.app.daemon import main
main(prog_name="flintmq-broker")
"""
"""``flintmq-broker`` in a Python that has none of the names, with macOS's limit of open files."""


class BrokerWithoutLinux(LocalBroker):
    """A broker that runs ``WITHOUT_LINUX``."""

    def _program(self) -> Sequence[str]:
        return ("-P", "-c", WITHOUT_LINUX)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_it_keeps_messages_over_a_restart_and_its_store_is_sound(tmp_path: Path, end: str) -> None:
    bodies = [b"%d" % number + bytes(200_000) for number in range(50)]  # several files of the log
    with BrokerWithoutLinux(tmp_path / "store", settings={"flush.policy": "sync"}) as broker:
        with Producer(broker.address, compress_over=None) as producer:
            for body in bodies:
                producer.send(Message("orders", body, keys="k", sharding_key="one"))
        getattr(broker, end)()
        broker.start()
        assert [message.body for message in broker.drain("orders")] == bodies
        with Consumer(broker.address) as consumer:
            assert {message.body for message in consumer.query("orders", key="k", max_count=64)} == set(bodies)
    command = [sys.executable, "-P", "-c", WITHOUT_LINUX, "verify", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_figures_leave_out_what_only_proc_has(tmp_path: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    with BrokerWithoutLinux(settings={"metrics.listen": metrics}) as broker, Admin(broker.address) as admin:
        assert admin.status()
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as response:
            text = response.read().decode()
    assert "flintmq_" in text
    assert "process_" not in text
