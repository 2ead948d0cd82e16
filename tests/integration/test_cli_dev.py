"""``flintmq dev`` and ``flintmq console`` as processes: what they print, and how they end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

import httpx2
import pytest

from flintmq.client import Consumer, Message, Producer
from flintmq.client.cli.failures import EXIT_USAGE
from flintmq.protocol.storage.arrays.kernel_caches import CACHE_VARIABLE
from tests.cli_tools import PROGRAM, Cli
from tests.conftest import BrokerFactory
from tests.console_tools import console_process
from tests.group_tools import until
from tests.tls_tools import Authority


@contextmanager
def dev(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str, Path]]:
    """Run ``flintmq dev`` on free ports and yield the process, the broker's address, the page and the store."""
    command = [*PROGRAM, "dev", "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0", *arguments]
    # A process group of its own stands for the one that a terminal sends Ctrl-C to.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        page = process.stdout.readline().split()[1]
        try:
            yield process, words[1], page, Path(words[3])
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


def test_ctrl_c_ends_the_broker_and_the_console(tmp_path: Path) -> None:
    with dev("--store", str(tmp_path / "store")) as (process, address, page, store):
        with Producer(address) as producer:
            producer.send(Message("orders", b"hello"))
        assert "hello" in httpx2.get(f"{page}topics/orders").text
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "by itself" not in said
    assert store == tmp_path / "store"
    with dev("--store", str(store)) as (_, address, _, _), Consumer(address) as consumer:
        assert [message.body for message in consumer.iter("orders", until="latest")] == [b"hello"]


def test_the_commands_that_it_names_work_and_a_temporary_store_is_gone_at_the_end(tmp_path: Path) -> None:
    with dev() as (process, _, _, store), Cli(tmp_path) as cli:
        assert store.is_dir()
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        send, tail = (process.stdout.readline().split("   ")[0].split() for _ in range(2))
        assert cli.run(*send[1:]).code == 0
        assert cli.run(*tail[1:], "--count", "1").lines == ["hello"]
        process.terminate()
        assert process.wait(60) == 0
    assert not store.exists()


def test_the_first_start_says_that_it_is_slow_at_first_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, CACHE_VARIABLE: str(cache), "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [*PROGRAM, "dev", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        # On a machine with another broker, it also warns that the usual port of the metrics is taken.
        said = next(line for line in process.stderr if line.startswith("kernels: "))
        assert said.startswith("kernels: first start: they are compiled for this machine")
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read().count("Traceback") == 0
    assert list(temporary.iterdir()) == []


WITHOUT_CONSOLE = """
import sys
sys.modules["starlette"] = None
from flintmq.client.cli.main import main
main()
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_without_the_console_it_runs_the_broker_alone(end: signal.Signals) -> None:
    command = [sys.executable, "-c", WITHOUT_CONSOLE, "dev", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        address, store = itemgetter(1, 3)(process.stdout.readline().split())
        assert process.stdout.readline() == "console: not installed: pip install 'flintmq[console]'\n"
        with Producer(address) as producer:
            producer.send(Message("orders", b"hello"))
        os.killpg(process.pid, end)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "by itself" not in said
    assert not Path(store).exists()


def test_a_killed_command_leaves_no_broker(tmp_path: Path) -> None:
    with dev("--store", str(tmp_path / "store")) as (process, address, _, _):
        process.kill()
        host, _, port = address.rpartition(":")

        def is_gone() -> bool:
            with socket.socket() as sock:
                return sock.connect_ex((host, int(port))) != 0

        until(is_gone)


def test_a_broker_that_cannot_start_is_the_end(broker: BrokerFactory, tmp_path: Path) -> None:
    done = Cli(tmp_path).spawn("dev", "--listen", broker().address, "--console", "127.0.0.1:0")
    assert done.code == EXIT_USAGE
    assert "in use" in done.err
    assert "the broker did not start" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "passwords in clear text"),
        (["--listen", "127.0.0.1:0", "--behind-proxy"], "no users"),
        (["--listen", "nonsense:port"], "expected HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--https-key", "key.pem"], "pass both"),
        (["--listen", "127.0.0.1:0", "--https-certificate", "missing.pem"], "there is no file"),
    ],
)
def test_a_console_that_would_be_open_to_all_does_not_start(
    broker: BrokerFactory, arguments: list[str], words: str, tmp_path: Path
) -> None:
    done = Cli(tmp_path, broker().address).run("console", *arguments)
    assert (done.code, done.out) == (EXIT_USAGE, "")
    assert words in done.err


def test_a_console_serves_https(broker: BrokerFactory, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("console")
    running = broker()
    with console_process(running, "--https-certificate", issued.certificate, "--https-key", issued.key) as url:
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=authority.path)
        page = httpx2.get(f"{url}/topics", verify=context)
        assert page.status_code == 200
        assert page.headers["strict-transport-security"].startswith("max-age=")
        made = httpx2.post(f"{url}/topics", data={"topic": "orders"}, headers={"origin": url}, verify=context)
        assert made.status_code == 303
        foreign = {"origin": url.replace("https", "http")}
        refused = httpx2.post(f"{url}/topics", data={"topic": "bills"}, headers=foreign, verify=context)
        assert refused.status_code == 403


def test_an_address_in_use_is_said(broker: BrokerFactory, tmp_path: Path) -> None:
    running = broker()
    done = Cli(tmp_path, running.address).spawn("console", "--listen", running.address)
    assert done.code == EXIT_USAGE
    assert "cannot listen" in done.err
