"""``PushConsumer.run``: programs that end in order on a signal, with real processes and signals."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin, ConnectionFailed, Message, Producer, PushConsumer, aio
from flintmq.testing.started_broker import broker_environment
from tests.client_drivers import Clients
from tests.conftest import RunningBroker
from tests.group_tools import Seen, until

COMMON = """
import logging, os, sys, time

logging.basicConfig(level=logging.INFO, format="%(message)s")
address, topic, folder = sys.argv[1:]

def note(name, message):
    with open(os.path.join(folder, name), "ab") as file:
        file.write(message.body + b"\\n")

def may_go_on():
    return os.path.exists(os.path.join(folder, "go"))

OPTIONS = {"group": topic, "topics": topic, "start": "first", "workers": 2, "timeout": 60}
"""
SYNC = (
    COMMON
    + """
from flintmq.client import PushConsumer

def listener(message):
    note("begun", message)
    while not may_go_on():
        time.sleep(0.01)
    note("done", message)

PushConsumer(address, listener=listener, **OPTIONS).run()
print("in order")
"""
)
AIO = (
    COMMON
    + """
import asyncio
from flintmq.client.aio import PushConsumer

async def listener(message):
    note("begun", message)
    while not may_go_on():
        await asyncio.sleep(0.01)
    note("done", message)

async def main():
    await PushConsumer(address, listener=listener, **OPTIONS).run()
    print("in order")

asyncio.run(main())
"""
)
AIO_PLAIN = AIO.replace("async def listener", "def listener").replace("await asyncio.sleep", "time.sleep")
UVLOOP = AIO.replace("asyncio.run(main())", "import uvloop\nuvloop.run(main())")
PROGRAMS = [
    pytest.param(SYNC, id="sync"),
    pytest.param(AIO, id="aio"),
    pytest.param(AIO_PLAIN, id="aio with a plain function"),
    pytest.param(
        UVLOOP,
        id="uvloop",
        marks=pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed"),
    ),
]


class Program:
    """One of the programs, in its own process."""

    def __init__(self, program: str, address: str, topic: str, folder: Path) -> None:
        self.folder = folder
        self.stderr = folder / f"stderr-{len(list(folder.glob('stderr-*')))}"
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, address, topic, str(folder)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=broker_environment(),
            )

    def noted(self, name: str) -> list[str]:
        """Return the messages that listeners have written to a file."""
        file = self.folder / name
        return file.read_text().split() if file.exists() else []

    def signal(self, number: int) -> None:
        """Send the first signal; return when the program has noticed it."""
        self.process.send_signal(number)
        until(lambda: f"{signal.Signals(number).name}: shutting down" in self.stderr.read_text(), "noticing the signal")

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and standard output."""
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode()


Start = Callable[[str], Program]


@pytest.fixture
def start(shared_broker: RunningBroker, topic: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts programs that consume the topic; kill those still running at the end."""
    with Producer(shared_broker.address) as producer, Admin(shared_broker.address) as admin:
        admin.create_topic(topic, queues=4)
        producer.send_many([Message(topic, b"%d" % number) for number in range(40)])
    started: list[Program] = []

    def begin(program: str) -> Program:
        started.append(Program(program, shared_broker.address, topic, tmp_path))
        return started[-1]

    yield begin
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_listeners_finish_and_the_next_start_continues_after_them(
    program: str, number: int, start: Start, topic: str, shared_broker: RunningBroker
) -> None:
    first = start(program)
    until(lambda: len(first.noted("begun")) >= 2)
    first.signal(number)
    assert first.process.poll() is None, "two listeners are not done"
    assert not first.noted("done")
    (first.folder / "go").touch()
    assert first.end() == (0, "in order\n")
    assert Counter(first.noted("done")) == Counter(first.noted("begun"))
    with Admin(shared_broker.address) as admin:
        group = admin.group(topic)
        assert not group.members
        assert sum(queue.lag for queue in group.queues) == 40 - len(first.noted("done")), "what was done is committed"
    second = start(program)
    until(lambda: len(second.noted("done")) >= 40)
    second.signal(number)
    assert second.end() == (0, "in order\n")
    assert Counter(second.noted("done")) == Counter(str(number) for number in range(40)), "each once"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_interrupts_at_once(program: str, number: int, start: Start) -> None:
    stuck = start(program)
    until(lambda: len(stuck.noted("begun")) >= 2)
    stuck.signal(number)
    stuck.process.send_signal(number)
    assert stuck.end() == (-number, "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_signal_ends_a_consumer_that_waits_for_its_broker(program: str, tmp_path: Path) -> None:
    waiting = Program(program, "127.0.0.1:1", "t", tmp_path)
    until(lambda: "waiting for the broker" in waiting.stderr.read_text())
    waiting.signal(signal.SIGTERM)
    assert waiting.end() == (0, "in order\n"), waiting.stderr.read_text()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_signal_that_does_not_wake_the_main_thread_is_noticed(program: str, tmp_path: Path) -> None:
    quiet = """
import signal, threading

def kill():
    time.sleep(0.2)  # the main thread waits by then; if not, it notices the signal all the more
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

class Waiting(logging.Handler):
    def emit(self, record):
        if "waiting for the broker" in record.getMessage():
            threading.Thread(target=kill).start()

logging.getLogger().addHandler(Waiting())
"""
    waiting = Program(program.replace("OPTIONS =", f"{quiet}\nOPTIONS ="), "127.0.0.1:1", "t", tmp_path)
    assert waiting.end() == (0, "in order\n"), waiting.stderr.read_text()


def test_in_another_thread_it_runs_until_another_thread_closes_it(
    clients: Clients, shared_broker: RunningBroker, topic: str
) -> None:
    seen = Seen()
    with Producer(shared_broker.address) as producer:
        producer.send(Message(topic, b"x"))
    consumer = clients.PushConsumer(shared_broker.address, topic, topic, seen, start="first")
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    thread = threading.Thread(target=consumer.run)
    thread.start()
    seen.wait(1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    consumer.close()
    thread.join()


def test_in_the_main_thread_the_handlers_are_as_before_when_it_returns(
    shared_broker: RunningBroker, topic: str
) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    within: list[Any] = []

    def listener(message: object) -> None:
        within.extend(signal.getsignal(number) for number in numbers)
        os.kill(os.getpid(), signal.SIGTERM)

    with Producer(shared_broker.address) as producer:
        producer.send(Message(topic, b"x"))
    PushConsumer(shared_broker.address, topic, topic, listener, start="first").run()
    assert [signal.getsignal(number) for number in numbers] == before
    assert before[0] not in within
    with pytest.raises(ConnectionFailed):
        PushConsumer("127.0.0.1:1", topic, topic, listener, timeout=0.2).run()
    assert [signal.getsignal(number) for number in numbers] == before


async def test_a_cancelled_run_ends_in_order_too(shared_broker: RunningBroker, topic: str) -> None:
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def listener(message: object) -> None:
        begun.set()
        await go_on.wait()
        done.set()

    async with aio.Producer(shared_broker.address) as producer:
        await producer.send(Message(topic, b"x"))
    task = asyncio.create_task(aio.PushConsumer(shared_broker.address, topic, topic, listener, start="first").run())
    await begun.wait()
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
    async with aio.Admin(shared_broker.address) as admin:
        group = await admin.group(topic)
    assert not group.members
    assert sum(queue.lag for queue in group.queues) == 0
