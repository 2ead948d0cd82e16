"""Celery in an environment of its own: its workers, and programs that use it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flintmq.client import Admin
from flintmq.scripts.bench.environment import install
from flintmq.scripts.bench.measure import Skipped
from flintmq.testing.started_broker import broker_environment
from tests.conftest import RunningBroker

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements.txt"
READY_SECONDS = 120


@pytest.fixture(scope="session")
def celery_python() -> Path:
    """Return the Python of an environment with Celery and this FlintMQ. Later runs find it in ``.venv/celery``."""
    folder = ROOT / ".venv" / "celery"
    folder.mkdir(parents=True, exist_ok=True)
    stamp, wanted = folder / "stamp", hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    python = folder / "environment" / "bin" / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes of pytest-xdist may want it
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder / "environment", ignore_errors=True)
            try:
                install(folder, "--requirement", str(REQUIREMENTS))
            except Skipped as reason:
                pytest.skip(str(reason))
            (packages,) = (folder / "environment").glob("lib/python3*/site-packages")
            (packages / "flintmq.pth").write_text(f"{ROOT / '.pkg'}\n")
            stamp.write_text(wanted)
    return python


class CeleryApp:
    """The application of ``tasks.py`` with a broker: its workers, and what they have run."""

    def __init__(self, python: Path, folder: Path, url: str) -> None:
        self._python = python
        self._folder = folder
        self._workers: list[Worker] = []
        self.environment = broker_environment(
            BROKER=url, FOLDER=str(folder), C_FORCE_ROOT="1", PYTHONUNBUFFERED="1", PYTHONPATH=""
        )

    def worker(self, name: str, *options: str) -> Worker:
        """Start a worker, without waiting until it is ready."""
        command = [str(self._python), "-m", "celery", "-A", "tasks", "worker", "-n", f"{name}@test", "-l", "INFO"]
        worker = Worker([*command, *options], self.environment)
        self._workers.append(worker)
        return worker

    def start(self, program: str, script: str) -> subprocess.Popen[str]:
        command = [str(self._python), script, program]
        return subprocess.Popen(command, cwd=HERE, env=self.environment, stdout=subprocess.PIPE, text=True)

    def run(self, program: str, *arguments: str, script: str = "programs.py") -> str:
        """Run a function of a script of this folder; return its output."""
        command = [str(self._python), script, program, *arguments]
        done = subprocess.run(command, cwd=HERE, env=self.environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def runs(self) -> Counter[str]:
        """Return how often each task has run."""
        path = self._folder / "runs"
        return Counter(path.read_text().splitlines() if path.exists() else ())

    def end(self) -> None:
        """Kill the workers that still run."""
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.kill()


class Worker:
    """A worker with its pool, in a process group of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path = HERE) -> None:
        self.lines: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def ready(self) -> Worker:
        """Wait until it consumes."""
        assert self._ready.wait(READY_SECONDS), self.log
        assert self.process.poll() is None, self.log
        return self

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self._end()

    def stop(self) -> None:
        """Stop it as a service manager does; it must finish its tasks."""
        self.process.terminate()
        assert self._end() == 0, self.log

    def _end(self) -> int:
        code = self.process.wait(READY_SECONDS)
        self._reader.join(READY_SECONDS)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line)
                if " ready." in line:
                    self._ready.set()
        self._ready.set()


def nothing_is_left(admin: Admin) -> bool:
    """Return whether every task that was sent is settled, and none waits for its time."""
    delays = admin.delays()
    waiting = sum(level.messages for level in delays.levels.values()) + len(delays.hours)
    return not waiting + sum(row.lag for row in admin.consume_stats("celery", uncommitted=True))


CeleryFactory = Callable[..., CeleryApp]


@pytest.fixture
def celery_app(celery_python: Path, tmp_path: Path) -> Iterator[CeleryFactory]:
    """Return ``connect(broker, user="")``, which connects the application with a broker; ``user``: NAME:PASSWORD."""
    made: list[CeleryApp] = []

    def connect(broker: RunningBroker, user: str = "") -> CeleryApp:
        made.append(CeleryApp(celery_python, tmp_path, f"flintmq://{user and user + '@'}{broker.address}//"))
        return made[-1]

    yield connect
    for app in made:
        app.end()
