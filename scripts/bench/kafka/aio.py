"""Measurements of aiokafka for comparison with FlintMQ's groups, in a temporary environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..bench import Bench
from ..environment import clean_environment, install
from ..load import TOPIC
from ..measure import BenchFailed, Skipped
from .jars import ALONE, Jars, get_jars
from .server import Kafka

REQUIREMENT = "aiokafka==0.14.0"
KAFKA = "_kafka"
"""Suffix of the keys of Kafka's figures."""
RUN_SECONDS_MAX = 180.0

_PROGRAM = Path(__file__).parent / "aio_group.py"


class AioKafka:
    """Kafka's side of a case: a broker for each run, and programs that use it. ``reason``: why there is no Kafka."""

    def __init__(self, bench: Bench, jars: Jars | None, python: Path | None, reason: str) -> None:
        self._bench = bench
        self._jars = jars
        self._python = python
        self._reason = reason

    @contextmanager
    def broker(self, partitions: int) -> Iterator[Kafka | None]:
        """Yield a broker with the topic, or None if Kafka is unavailable."""
        if self._jars is None or self._python is None:
            yield None
            return
        with self._bench.store() as folder, Kafka(self._jars, folder / "kafka", TOPIC, partitions) as kafka:
            # Kafka creates internal topics for its first group, which takes seconds.
            self.run(kafka, "consume", "warm-up", 0, True)
            yield kafka

    def start(self, kafka: Kafka, command: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a program of ``aio_group.py`` with the broker's topic."""
        assert self._python is not None
        return subprocess.Popen(
            [str(self._python), str(_PROGRAM), command, kafka.address, kafka.topic, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def run(self, kafka: Kafka, command: str, *arguments: object) -> Any:
        """Return the output of such a program."""
        return finish(self.start(kafka, command, *arguments))

    def end(self) -> None:
        """Raise ``Skipped`` if Kafka's figures could not be measured. Call it after the last run."""
        if self._reason:
            raise Skipped(f"Kafka's figures: {self._reason}")


def finish(process: subprocess.Popen[str]) -> Any:
    """Return the last output of a program of ``aio_group.py``."""
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
    """Yield Kafka's side. If its jars or aiokafka are unavailable, it has no brokers and a reason."""
    with ExitStack() as stack:
        try:
            if bench.alone:
                raise Skipped(ALONE)
            jars = get_jars(None)
            python = install(stack.enter_context(bench.store()), REQUIREMENT)
        except Skipped as reason:
            yield AioKafka(bench, None, None, str(reason))
            return
        bench.note(f"Kafka {jars.kafka_version} with {REQUIREMENT}, both with their defaults")
        yield AioKafka(bench, jars, python, "")
