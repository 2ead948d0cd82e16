"""The pytest plug-in, in runs of pytest of its own: with and without pytest-xdist, against real brokers."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flintmq.client import Admin
from flintmq.protocol.storage.arrays.kernel_caches import CACHE_VARIABLE
from flintmq.testing.plugin import VARIABLE
from tests.conftest import RunningBroker
from tests.group_tools import until

PLAIN = ("-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""Options of the inner runs. Hypothesis's plug-in takes most of the time of a short run."""
QUIET = (*PLAIN, "-o", "asyncio_default_fixture_loop_scope=function")
"""The same with pytest-asyncio, which warns if its setting is missing."""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the temporary stores of the inner runs in this test's folder, and the outer run's broker out of them."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """Return the folder in which the inner runs make their temporary stores."""
    return tmp_path


def left_over(stores: Path) -> list[Path]:
    """Return the temporary stores that are still there."""
    return list(stores.glob("flintmq-test-*"))


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def run(pytester: pytest.Pytester, program: str, *options: str, **outcomes: int) -> pytest.RunResult:
    """Run pytest on a file of tests in a process of its own, and compare the numbers of its outcomes."""
    pytester.makepyfile(program)
    result = pytester.runpytest_subprocess(*QUIET, *options, timeout=240)
    result.assert_outcomes(**outcomes)
    return result


def test_the_fixtures_work_together(pytester: pytest.Pytester, stores: Path) -> None:
    run(
        pytester,
        """
        import pytest
        from flintmq.client import GiveUp, Message, PushConsumer

        @pytest.mark.parametrize("kind", ["a b", "ä/ö"])
        def test_a_message(flintmq_topic, flintmq_producer, flintmq_consumer, flintmq_admin, flintmq_broker, kind):
            assert flintmq_topic.startswith("test_a_message-")
            assert flintmq_admin.topics()[flintmq_topic].queues == 4
            assert flintmq_broker.drain(flintmq_topic) == []
            for number in range(9):
                flintmq_producer.send(Message(flintmq_topic, b"%d" % number, keys=f"k-{number}"))
            assert [message.body for message in flintmq_broker.drain(flintmq_topic)] == [b"%d" % n for n in range(9)]
            assert [message.body for message in flintmq_consumer.query(flintmq_topic, "k-3")] == [b"3"]

        def test_a_group(flintmq_topic, flintmq_producer, flintmq_broker):
            def handle(message):
                if message.body == b"bad":
                    raise GiveUp("no account")

            assert flintmq_broker.dead_letters(flintmq_topic) == []
            with PushConsumer(flintmq_broker.address, flintmq_topic, flintmq_topic, handle, start="first"):
                flintmq_producer.send_many([Message(flintmq_topic, body) for body in (b"good", b"bad", b"good")])
                flintmq_broker.wait_for_lag(flintmq_topic, 0, timeout=60)
            (dead,) = flintmq_broker.dead_letters(flintmq_topic)
            assert (dead.body, dead.retry_reason) == (b"bad", "no account")

        def test_a_deleted_topic(flintmq_topic, flintmq_admin):
            flintmq_admin.delete_topic(flintmq_topic)
        """,
        passed=4,
    )
    assert left_over(stores) == []


def test_a_test_may_end_the_broker_of_its_session_and_start_it_again(pytester: pytest.Pytester, stores: Path) -> None:
    run(
        pytester,
        """
        import pytest
        from flintmq.client import Message, Producer
        from flintmq.testing import BrokerFailed

        @pytest.mark.parametrize("end", ["stop", "kill"])
        def test_restart(flintmq_broker, flintmq_topic, flintmq_producer, end):
            flintmq_producer.send(Message(flintmq_topic, b"before"))
            address = flintmq_broker.address
            getattr(flintmq_broker, end)()
            with pytest.raises(BrokerFailed, match="does not run"):
                flintmq_broker.stop()
            flintmq_broker.start()
            with pytest.raises(BrokerFailed, match="runs already"):
                flintmq_broker.start()
            assert flintmq_broker.address == address
            flintmq_producer.send(Message(flintmq_topic, b"after"))
            assert [message.body for message in flintmq_broker.drain(flintmq_topic)] == [b"before", b"after"]
        """,
        passed=2,
    )
    assert left_over(stores) == []


GIVEN = """
import pytest
from flintmq.testing import BrokerNotOwned

def test_given(flintmq_broker, flintmq_topic):
    assert flintmq_broker.address == "{address}"
    for action in (flintmq_broker.start, flintmq_broker.stop, flintmq_broker.kill):
        with pytest.raises(BrokerNotOwned, match="flintmq_broker_factory"):
            action()
"""


@pytest.mark.parametrize("way", ["option", "variable", "ini"])
def test_a_running_broker_is_used_and_its_topics_are_deleted(
    pytester: pytest.Pytester, shared_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    address = shared_broker.address
    if way == "ini":
        pytester.makeini(f"[pytest]\nflintmq_broker = {address}\n")
    else:  # which override the setting
        pytester.makeini("[pytest]\nflintmq_broker = 127.0.0.1:1\n")
    if way == "variable":
        monkeypatch.setenv(VARIABLE, address)
    options = [f"--flintmq-broker={address}"] if way == "option" else []
    pytester.makepyfile(GIVEN.format(address=address))
    result = pytester.runpytest_subprocess(*QUIET[1:], *options, timeout=240)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"flintmq: the fixtures use the broker on {address}"])
    with Admin(address) as admin:
        assert not [name for name in admin.topics() if name.startswith("test_given-")]


def test_an_unreachable_broker_is_named_once_for_all_tests(pytester: pytest.Pytester) -> None:
    tests = "def test_a(flintmq_topic): pass\ndef test_b(flintmq_broker): pass"
    result = run(pytester, tests, "--flintmq-broker=127.0.0.1:1", errors=2)
    result.stdout.fnmatch_lines(["*ConnectionFailed*127.0.0.1:1*", "E*--flintmq-broker, FLINTMQ_TEST_BROKER or*"])


# ---- pytest-xdist

NOTE_ADDRESS = """
import os, pathlib, signal, time
import pytest
from flintmq.client import Message

NOTES = pathlib.Path({notes!r})

def note(worker_id, address):
    with (NOTES / worker_id).open("a") as file:
        file.write(address + "\\n")
"""
TESTS = """
@pytest.mark.parametrize("number", range(8))
def test_a(flintmq_broker, flintmq_topic, flintmq_producer, worker_id, number):
    flintmq_producer.send(Message(flintmq_topic, b"x"))
    assert len(flintmq_broker.drain(flintmq_topic)) == 1
    note(worker_id, flintmq_broker.address)
"""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Return a folder in which every worker notes the addresses of its broker."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def noted(notes: Path) -> set[str]:
    return {line for file in notes.iterdir() for line in file.read_text().splitlines()}


def test_workers_share_one_broker_which_ends_with_the_last_of_them(
    pytester: pytest.Pytester, notes: Path, stores: Path
) -> None:
    run(pytester, NOTE_ADDRESS.format(notes=str(notes)) + TESTS, "-n", "3", passed=8)
    assert len(list(notes.iterdir())) > 1
    (address,) = noted(notes)
    until(lambda: not listens(address) and not left_over(stores))


@pytest.mark.long(seconds=12)
def test_a_shared_broker_outlives_a_killed_worker_and_ends_with_the_others(
    pytester: pytest.Pytester, notes: Path, stores: Path
) -> None:
    kill = """
def test_kill(flintmq_broker, worker_id):
    note(worker_id, flintmq_broker.address)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    run(pytester, NOTE_ADDRESS.format(notes=str(notes)) + kill + TESTS, "-n", "2", passed=8, failed=1)
    (address,) = noted(notes)
    until(lambda: not listens(address) and not left_over(stores))


@pytest.mark.long(seconds=12)
def test_a_worker_must_not_end_the_broker_of_the_others(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import pytest
        from flintmq.testing import BrokerNotOwned

        def test_kill(flintmq_broker):
            with pytest.raises(BrokerNotOwned, match="cannot be killed: it belongs to all workers of pytest-xdist"):
                flintmq_broker.kill()
        """,
        "-n",
        "1",
        passed=1,
    )


def test_a_shared_broker_that_does_not_start_fails_with_its_output(
    pytester: pytest.Pytester, stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = stores / "hidden"
    hidden.mkdir()
    (hidden / "numba.py").write_text("raise ModuleNotFoundError(name='numba')\n")
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    result = run(pytester, "def test_a(flintmq_broker): pass", "-n", "2", errors=1)
    result.stdout.fnmatch_lines(["*BrokerFailed: the broker did not start (exit 1)*", "*ModuleNotFoundError*"])
    assert left_over(stores) == []


# ---- other ends


def test_a_broker_ends_if_pytest_is_killed(pytester: pytest.Pytester, notes: Path) -> None:
    program = NOTE_ADDRESS.format(notes=str(notes)) + (
        "def test_a(flintmq_broker):\n    note('main', flintmq_broker.address)\n    signal.pause()\n"
    )
    path = pytester.makepyfile(program)
    with subprocess.Popen([sys.executable, "-m", "pytest", *QUIET, path], stdout=subprocess.DEVNULL) as process:
        until(lambda: (notes / "main").exists() and bool((notes / "main").read_text()))
        (address,) = noted(notes)
        assert listens(address)
        process.kill()
    until(lambda: not listens(address))


def test_the_header_says_that_the_first_start_compiles(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "flintmq: no kernel is compiled yet; the first test that starts a broker waits for it*"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cold"))
    pytester.makepyfile("def test_a(): pass")
    pytester.runpytest_subprocess(*QUIET[1:]).stdout.fnmatch_lines([said])
    (tmp_path / "cold" / "digest").mkdir(parents=True)
    pytester.runpytest_subprocess(*QUIET[1:]).stdout.no_fnmatch_line(said)


def test_the_plug_in_imports_nothing_but_pytest() -> None:
    program = (
        "import pytest, sys; loaded = {*sys.modules}; import flintmq.testing.plugin; print({*sys.modules} - loaded)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == {"flintmq", "flintmq.testing", "flintmq.testing.plugin"}


# ---- asyncio

AIO = """
import pytest
from flintmq.client import Message

{mark}
async def test_a(flintmq_topic, flintmq_producer_aio, flintmq_consumer_aio, flintmq_admin_aio):
    await flintmq_producer_aio.send(Message(flintmq_topic, b"x", keys="k"))
    assert [message.body for message in await flintmq_consumer_aio.query(flintmq_topic, "k")] == [b"x"]
    assert flintmq_topic in await flintmq_admin_aio.topics()
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("@pytest.mark.asyncio", ["-o", "asyncio_mode=strict"]),
        ("", ["-o", "asyncio_mode=auto"]),
        ('@pytest.mark.anyio\n@pytest.mark.parametrize("anyio_backend", ["asyncio"])', ["-p", "no:asyncio"]),
    ],
    ids=["asyncio strict", "asyncio auto", "anyio"],
)
def test_the_asyncio_fixtures_run_with_the_plug_in_that_is_there(
    pytester: pytest.Pytester, shared_broker: RunningBroker, mark: str, options: list[str]
) -> None:
    pytester.makepyfile(AIO.format(mark=mark))
    quiet = PLAIN if "no:asyncio" in options else QUIET
    result = pytester.runpytest_subprocess(*quiet, *options, f"--flintmq-broker={shared_broker.address}", timeout=240)
    result.assert_outcomes(passed=1)


def test_without_such_a_plug_in_there_are_no_asyncio_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("")
    without = pytester.runpytest_subprocess(*PLAIN, "-p", "no:asyncio", "-p", "no:anyio", "--fixtures")
    without.stdout.fnmatch_lines(["flintmq_producer *"])
    without.stdout.no_fnmatch_line("flintmq_producer_aio*")
