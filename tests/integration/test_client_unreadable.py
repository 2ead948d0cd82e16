"""Bodies whose compression library is not installed: one typed error, and a reason in a push consumer's log."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from flintmq.client import Message, Producer

if TYPE_CHECKING:
    from tests.conftest import RunningBroker

WITHOUT_LZ4 = "import sys; sys.modules['lz4'] = sys.modules['lz4.frame'] = None\n"


def run_without_lz4(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that has no lz4."""
    command = [sys.executable, "-c", WITHOUT_LZ4 + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def lz4_topic(shared_broker: RunningBroker, topic: str) -> str:
    pytest.importorskip("lz4")
    with Producer(shared_broker.address, compression="lz4") as producer:
        producer.send(Message(topic, b"ab" * 5000, keys="o-1"))
    return topic


def test_the_default_is_read_without_libraries(shared_broker: RunningBroker, topic: str) -> None:
    with Producer(shared_broker.address) as producer:
        producer.send(Message(topic, b"ab" * 5000))
    done = run_without_lz4(f"""
from flintmq.client import Consumer
with Consumer({shared_broker.address!r}) as consumer:
    print(len(next(consumer.iter({topic!r})).body))
""")
    assert done.stdout == "10000\n", done.stderr


def test_a_reader_gets_one_error_that_names_the_package_to_install(
    shared_broker: RunningBroker, lz4_topic: str
) -> None:
    done = run_without_lz4(f"""
from flintmq.client import CompressionUnavailable, Consumer
with Consumer({shared_broker.address!r}) as consumer:
    message = next(consumer.iter({lz4_topic!r}))
    try:
        message.body
    except CompressionUnavailable as error:
        assert error.__cause__ is None and error.__suppress_context__
        print(error)
""")
    assert lz4_topic in done.stdout, done.stderr
    assert "offset 0" in done.stdout
    assert done.stdout.endswith("pip install lz4\n")


@pytest.mark.parametrize("driver", ["sync", "aio"])
def test_a_push_consumer_logs_why_it_cannot_read(shared_broker: RunningBroker, lz4_topic: str, driver: str) -> None:
    done = run_without_lz4(f"""
import asyncio, logging, time
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
from flintmq.client import PushConsumer
from flintmq.client.aio import PushConsumer as AioPushConsumer

def bill(message):
    print(len(message.body))

async def bill_later(message):
    print(len(message.body))

options = dict(group={f"{driver}-{lz4_topic}"!r}, topics={lz4_topic!r}, start="first")
if {driver!r} == "sync":
    with PushConsumer({shared_broker.address!r}, listener=bill, **options) as consumer:
        while not consumer.health().retried:
            time.sleep(0.01)
else:
    async def main():
        async with AioPushConsumer({shared_broker.address!r}, listener=bill_later, **options) as consumer:
            while not consumer.health().retried:
                await asyncio.sleep(0.01)
    asyncio.run(main())
""")
    assert done.returncode == 0, done.stderr
    reasons = [line for line in done.stderr.splitlines() if "cannot be read" in line]
    assert len(reasons) == 1, done.stderr
    assert reasons[0].startswith("ERROR group ")
    assert lz4_topic in reasons[0]
    assert "pip install lz4" in reasons[0]
    assert "Traceback" not in done.stderr
