"""A real Spark cluster on this machine: a standalone master and workers, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from flintmq.client.spark.java import find_java, home_for_start

START_TIMEOUT_S = 90.0


@dataclass
class Cluster:
    """A master with its workers; ``url`` is the value for ``spark.master``."""

    folder: Path
    environment: dict[str, str]
    url: str = ""
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    drains: list[threading.Thread] = field(default_factory=list)

    def start_master(self) -> None:
        """Start the master on a free port."""
        arguments = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        _, found = self._start(
            "master", "org.apache.spark.deploy.master.Master", arguments, r"Starting Spark master at (\S+)"
        )
        self.url = found

    def start_worker(self) -> None:
        """Start a worker of one core, and wait until it has registered with the master."""
        number = len(self.workers)
        options = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        work = ("--work-dir", str(self.folder / f"work-{number}"))
        process, _ = self._start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            (*options, *work, self.url),
            r"Successfully registered with master (\S+)",
        )
        self.workers.append(process)

    def kill_worker(self, number: int) -> None:
        """Send SIGKILL to a worker, its executor and the executor's Python, as if a machine died."""
        _kill_group(self.workers[number])

    def _start(self, name: str, main: str, arguments: tuple[str, ...], says: str) -> tuple[subprocess.Popen[str], str]:
        command = [str(Path(self.environment["SPARK_HOME"], "bin", "spark-class")), main, *arguments]
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        seen: list[str] = []
        assert process.stderr is not None
        try:
            for line in process.stderr:
                seen.append(line)
                if match := re.search(says, line):
                    # The rest of the output goes to a file, so that the process never waits for a reader.
                    drain = threading.Thread(target=_drain, args=(process, self.folder / f"{name}.log"))
                    drain.start()
                    self.drains.append(drain)
                    return process, match[1]
        finally:
            watchdog.cancel()
        raise AssertionError(f"{name} did not start:\n{''.join(seen)}")

    def stop(self) -> None:
        """Kill all processes; nothing of them is to be kept."""
        for process in self.processes:
            _kill_group(process)
        for drain in self.drains:
            drain.join()


def _drain(process: subprocess.Popen[str], log: Path) -> None:
    assert process.stderr is not None
    with process.stderr, log.open("w") as file:
        for line in process.stderr:
            file.write(line)


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def running_cluster(folder: Path, environment: dict[str, str], workers: int) -> Iterator[Cluster]:
    """Yield a cluster with so many workers; all its processes have ended afterwards."""
    import pyspark

    stack = ExitStack()
    java_home = stack.enter_context(home_for_start(find_java(), hides_spark_home=False))
    variables = {
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }
    cluster = Cluster(folder, {**environment, **variables})
    with stack:
        stack.callback(cluster.stop)
        cluster.start_master()
        for _ in range(workers):
            cluster.start_worker()
        yield cluster
