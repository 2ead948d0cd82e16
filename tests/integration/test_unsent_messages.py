"""A producer reports undelivered messages when it is closed, is dropped, or its program ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import subprocess
import sys
from typing import Any

import pytest

from flintmq.client import Message, Producer, aio
from tests.client_drivers import Clients
from tests.conftest import RunningBroker


@pytest.fixture
def free_port() -> int:
    """Return a port on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


SYNC = """
import os, sys
from flintmq.client import Message, Producer

producer = Producer(sys.argv[1], delivery_timeout=60)
for number in range(100):
    producer.send_async(Message("t", b"x"))
{end}
"""
AIO = """
import asyncio, os, sys
from flintmq.client import Message
from flintmq.client.aio import Producer

async def main():
    producer = Producer(sys.argv[1], delivery_timeout=60)
    for number in range(100):
        producer.send_async(Message("t", b"x"))
    {end}

asyncio.run(main())
"""
LOST = "100 messages of send_async are not acknowledged and may be lost"


def run(program: str, address: str, *options: str) -> tuple[int, str]:
    """Run a program; return its exit code and its standard error."""
    command = [sys.executable, *options, "-c", program, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("program", [SYNC, AIO], ids=["sync", "aio"])
def test_a_program_that_ends_without_close_reports_its_unsent_messages(program: str, free_port: int) -> None:
    code, said = run(program.format(end="pass"), f"127.0.0.1:{free_port}")
    assert code == 0
    assert said.count(LOST) == 1, said
    _, said = run(program.format(end="pass"), f"127.0.0.1:{free_port}", "-X", "dev")
    assert "ResourceWarning: the interpreter is exiting, and a producer was not closed" in said


def test_a_producer_of_an_ended_loop_warns_when_it_is_collected(
    free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def forget_to_close() -> None:
        producer = aio.Producer(f"127.0.0.1:{free_port}", delivery_timeout=60)
        for _ in range(100):
            producer.send_async(Message("t", b"x"))

    asyncio.run(forget_to_close())
    with pytest.warns(ResourceWarning, match=LOST):
        gc.collect()
    assert caplog.text.count(LOST) == 1


@pytest.mark.parametrize(
    ("program", "end"),
    [
        (SYNC, "producer.close()"),
        (SYNC, "producer.flush()"),
        (AIO, "await producer.close()"),
        (AIO, "await producer.flush()"),
    ],
)
def test_a_producer_that_waits_for_its_messages_warns_of_nothing(
    program: str, end: str, shared_broker: RunningBroker
) -> None:
    assert run(program.format(end=end), shared_broker.address) == (0, "")


def test_the_child_of_a_fork_leaves_that_to_its_parent(free_port: int) -> None:
    end = "if not os.fork(): sys.exit()\nos.wait()"
    code, said = run(SYNC.format(end=end), f"127.0.0.1:{free_port}", "-W", "ignore::DeprecationWarning")
    assert (code, said.count(LOST)) == (0, 1), said


def test_a_block_that_raises_does_not_hide_earlier_failures(
    clients: Clients, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{free_port}"
    with contextlib.suppress(ZeroDivisionError), clients.Producer(address, delivery_timeout=0.2) as producer:
        for _ in range(7):
            producer.send_async(Message("t", b"x"))
        raise ZeroDivisionError
    (said,) = [record for record in caplog.records if record.name == "flintmq.client.unsent"]
    assert said.levelname == "WARNING"
    assert "ZeroDivisionError: 7 messages of send_async failed" in said.getMessage()


def test_an_interruption_without_wait_reports_the_abandoned_messages(
    free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(KeyboardInterrupt), Producer(f"127.0.0.1:{free_port}", delivery_timeout=60) as producer:
        for _ in range(7):
            producer.send_async(Message("t", b"x"))
        raise KeyboardInterrupt
    assert "closed by KeyboardInterrupt: 7 messages of send_async failed" in caplog.text


async def test_a_cancelled_block_reports_the_abandoned_messages(
    free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with aio.Producer(f"127.0.0.1:{free_port}", delivery_timeout=60) as producer:
            for _ in range(7):
                producer.send_async(Message("t", b"x"))
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "closed by CancelledError: 7 messages of send_async failed" in caplog.text


def test_a_dropped_producer_without_unsent_messages_warns_of_nothing(
    clients: Clients, shared_broker: RunningBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with clients.Producer(shared_broker.address) as producer:
        producer.send_async(Message(topic, b"x"))
        producer.flush()
    del producer
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_producer_with_refused_arguments_leaves_no_resources(recwarn: Any) -> None:
    for kind in (Producer, aio.Producer):
        with pytest.raises(Exception, match="delivery_timeout"):
            kind(delivery_timeout=-1)
    gc.collect()
    assert not recwarn.list
