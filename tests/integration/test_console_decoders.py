"""Decoders of bodies: entry points of a package that is installed beside the console."""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from flintmq.client import Message, Producer
from flintmq.client.console import bodies
from tests.conftest import RunningBroker
from tests.console_tools import console_of, faults_of
from tests.group_tools import until

MODULE = """
import threading

go_on = threading.Event()

def order(body: bytes) -> str:
    return f"order {int.from_bytes(body[:8], 'big')}"

def markup(body: bytes) -> str:
    return "<script>alert(1)</script>\\u202e"

def broken(body: bytes) -> str:
    raise ValueError(f"<b>no order</b> in {body!r}")

def leaving(body: bytes) -> str:
    raise SystemExit("bye")

def wrong(body: bytes) -> dict:
    return {"a": 1}

def long(body: bytes) -> str:
    return "x" * 100_000

def slow(body: bytes) -> str:
    go_on.wait(60)
    return "late"
"""
ENTRY_POINTS = """
[flintmq.decoders]
acme.order = acme_decoders:order
markup = acme_decoders:markup
broken = acme_decoders:broken
leaving = acme_decoders:leaving
wrong = acme_decoders:wrong
long = acme_decoders:long
slow = acme_decoders:slow
missing = acme_decoders:nothing
json = acme_decoders:markup
Not-A-Name! = acme_decoders:order
"""
NAMES = ["acme.order", "broken", "leaving", "long", "markup", "missing", "slow", "wrong"]
BODY = (1234).to_bytes(8, "big")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with decoders, as pip does."""
    metadata = tmp_path / "acme_decoders-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-decoders\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "acme_decoders.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture(scope="module")
def running(own_broker: RunningBroker) -> RunningBroker:
    with Producer(own_broker.address) as producer:
        producer.send(Message("orders", BODY), queue=0)
        producer.send(Message("orders", bytes(bodies.DECODED_BYTES_MAX + 1)), queue=0)
    return own_broker


@pytest.fixture
def client(running: RunningBroker, installed: None) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


def shown(client: TestClient, view: str, offset: int = 0) -> str:
    """Return the body of a message in one view, as a person reads it."""
    page = client.get(f"/topics/orders/0/{offset}?view={view}")
    assert page.status_code == 200
    assert faults_of(page.text) == []
    found = re.search(r"<pre[^>]*>(.*?)</pre>", page.text, re.DOTALL)
    assert found
    assert "<" not in found[1]
    return html.unescape(found[1])


def test_an_installed_decoder_is_offered_and_shows_its_text(client: TestClient) -> None:
    page = client.get("/topics/orders/0/0").text
    offered = re.findall(r'href="/topics/orders/0/0\?view=([^"]+)"', page)
    assert offered == ["text", *NAMES]  # hex is shown; a name of the console's own, and an invalid name, are left out
    assert shown(client, "acme.order") == "order 1234"
    assert "the first 64 KiB" not in client.get("/topics/orders/0/0?view=acme.order").text


def test_the_text_of_a_decoder_stays_text(client: TestClient) -> None:
    assert shown(client, "markup") == "<script>alert(1)</script>\\u202e"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", f"ValueError: <b>no order</b> in {BODY!r}"),
        ("leaving", "SystemExit: bye"),
        ("wrong", "it returned dict, not str"),
        ("missing", "AttributeError: module 'acme_decoders' has no attribute 'nothing'"),
    ],
)
def test_a_decoder_that_fails_is_named_with_the_reason(client: TestClient, name: str, reason: str) -> None:
    assert shown(client, name) == f"(the decoder {name} failed: {reason})"


def test_sizes_are_bounded_in_both_directions(client: TestClient) -> None:
    assert shown(client, "long") == "x" * 65_536
    assert "the first 64 KiB" in client.get("/topics/orders/0/0?view=long").text
    assert "a decoder gets at most 1,048,576" in shown(client, "acme.order", 1)


def test_a_slow_decoder_holds_up_no_page_for_long(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "DECODE_SECONDS", 0.1)
    for _ in range(bodies.RUNNING_MAX):
        assert "takes longer than" in shown(client, "slow")
    assert "4 decoders are still at work" in shown(client, "acme.order")
    importlib.import_module("acme_decoders").go_on.set()
    monkeypatch.setattr(bodies, "DECODE_SECONDS", 10)
    until(lambda: shown(client, "acme.order") == "order 1234")
