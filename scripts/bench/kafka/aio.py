"""aiokafka in an environment of its own, thrown away afterwards, and what of it is measured beside FlintMQ's groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..bench import Bench
from ..load import TOPIC
from ..measure import BenchFailed, Skipped
from .jars import ALONE, Jars, get_jars
from .server import Kafka

REQUIREMENT = "aiokafka==0.14.0"
KAFKA = "_kafka"
"""What the keys of Kafka's figures end with."""
INSTALL_SECONDS_MAX = 180.0
RUN_SECONDS_MAX = 180.0

_PROGRAM = Path(__file__).parent / "aio_group.py"


class AioKafka:
    """Kafka's side of a case: a broker for each run, and programs that use it. ``reason``: why there is none."""

    def __init__(self, bench: Bench, jars: Jars | None, python: Path | None, reason: str) -> None:
        self._bench = bench
        self._jars = jars
        self._python = python
        self._reason = reason

    @contextmanager
    def broker(self, partitions: int) -> Iterator[Kafka | None]:
        """A broker with the topic; None where it cannot be had."""
        if self._jars is None or self._python is None:
            yield None
            return
        with self._bench.store() as folder, Kafka(self._jars, folder / "kafka", TOPIC, partitions) as kafka:
            self.run(kafka, "consume", "warm-up", 0, True)  # its first group has it make topics, which takes seconds
            yield kafka

    def start(self, kafka: Kafka, command: str, *arguments: object) -> subprocess.Popen[str]:
        """A program of ``aio_group.py`` with the broker's topic."""
        assert self._python is not None
        return subprocess.Popen(
            [str(self._python), str(_PROGRAM), command, kafka.address, kafka.topic, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=_clean_environment(),
        )  # fmt: skip

    def run(self, kafka: Kafka, command: str, *arguments: object) -> Any:
        """What such a program says."""
        return finish(self.start(kafka, command, *arguments))

    def end(self) -> None:
        """To be called behind the last run. Raises ``Skipped`` where Kafka's figures could not be measured."""
        if self._reason:
            raise Skipped(f"Kafka's figures: {self._reason}")


def finish(process: subprocess.Popen[str]) -> Any:
    """The last that a program of ``aio_group.py`` says."""
    try:
        said = process.communicate(timeout=RUN_SECONDS_MAX)[0]
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise BenchFailed(f"aiokafka's program ended with exit {process.returncode}; its error is above")
    return json.loads(said.splitlines()[-1])


@contextmanager
def aiokafka(bench: Bench) -> Iterator[AioKafka]:
    """Kafka's side. Where its jars or aiokafka cannot be had, it has no brokers, and says why in the end."""
    with ExitStack() as stack:
        try:
            if bench.alone:
                raise Skipped(ALONE)
            jars = get_jars(None)
            python = _install(stack.enter_context(bench.store()))
        except Skipped as reason:
            yield AioKafka(bench, None, None, str(reason))
            return
        bench.note(f"Kafka {jars.kafka_version} with {REQUIREMENT}, both with their defaults")
        yield AioKafka(bench, jars, python, "")


def _install(folder: Path) -> Path:
    """An environment with aiokafka in ``folder``; its Python. Raises ``Skipped``."""
    environment = folder / "aiokafka"
    python = environment / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(environment)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
         REQUIREMENT],
    ):  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, env=_clean_environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skipped(f"aiokafka could not be installed: {error}") from None
        if done.returncode:
            raise Skipped(f"aiokafka could not be installed; is there a network? {done.stderr.strip()[-300:]}")
    return python


def _clean_environment() -> dict[str, str]:
    """Without what leads Python to this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
