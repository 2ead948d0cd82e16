"""Input of strangers does not harm the console: forms, messages, guesses, and requests that other sites make."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from flintmq.client import Admin, Message, Producer
from flintmq.client.console.pages import PAGES
from tests.conftest import BrokerFactory, Brokers, ConnectionFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, log_in
from tests.dead_letter_tools import bury
from tests.security_tools import PASSWORD, broker_with_users

FORM = SAME_SITE | {"content-type": "application/x-www-form-urlencoded"}


GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [{"actions": ["admin"], "broker": True}],
    "billing": [{"actions": ["consume"], "groupPrefix": "bill"}, {"actions": ["publish", "query"], "topicPrefix": "o"}],
    "other": [{"actions": ["consume"], "groupPrefix": "bill"}],
    "nobody": [],
}


def fill(running: RunningBroker) -> None:
    """Send the message that the tests look for."""
    with Admin(running.address) as admin, Producer(running.address) as producer:
        admin.create_topic("orders", 1)
        producer.send(Message("orders", b'{"card": ["visible"]}', keys="k"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    brokers = Brokers(tmp_path_factory.mktemp("hostile"))
    made = brokers.start(settings={"store.message_bytes_max": 4 << 20, "store.commitlog_file_bytes": 64 << 20})
    fill(made)
    yield made
    brokers.stop_all()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with broker_with_users(tmp_path_factory.mktemp("guarded"), GRANTS, {}) as made:
        yield made


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


# ---- forms


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/login", b"user=" + b"%41" * 30_000, 413),
        ("/topics", b"topic=" + b"x" * 70_000, 413),
        ("/dlq/g/resend", b"place=" + b"x" * 70_000, 413),
        ("/login", b"a&" * 1000, 400),
        ("/topics/orders/send", b"a=1&" * 1000, 400),
        ("/topics/orders/send", b"body=\xff", 400),
        ("/topics/orders/send", b"body=%ff", 400),
        ("/topics/orders/send", b"body=" + b"x" * (17 << 20), 413),
    ],
)
def test_a_form_is_bounded(client: TestClient, path: str, content: bytes, status: int) -> None:
    assert client.post(path, content=content, headers=FORM).status_code == status
    assert client.post(path, content=content, headers=SAME_SITE).status_code == 415


def test_a_large_message_is_sent_by_the_form(running: RunningBroker, client: TestClient) -> None:
    body = "ü%&+=" * 400_000
    sent = client.post("/topics/orders/send", data={"body": body}, headers=SAME_SITE)
    assert sent.status_code == 303
    assert client.get(f"{sent.headers['location']}/body").content == body.encode()


def test_a_large_form_needs_a_login_and_the_right_to_publish(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        large = b"body=" + b"x" * 200_000
        assert client.post("/topics/orders/send", content=large, headers=FORM).headers["location"] == "/login"
        log_in(client, "nobody", PASSWORD)
        assert client.post("/topics/orders/send", content=large, headers=FORM).status_code == 403


# ---- bodies


def packed(depth: int, size: int) -> bytes:
    """Return msgpack of this size, nested this deep."""
    leaf = b"\x91" * depth + b"\xc0"
    count = size // len(leaf)
    return b"\xdd" + count.to_bytes(4, "big") + leaf * count


@pytest.mark.parametrize(
    ("body", "view"),
    [
        (packed(400, 256 * 1024 - 500), "hex"),
        (packed(30, 256 * 1024 - 100), "msgpack"),
        (packed(0, 256 * 1024 - 100), "msgpack"),
        (b"\x81\x80\x01", "hex"),  # a map as a key
        (b"[" * 63 + b"1," * 30_000 + b"1" + b"]" * 63, "json"),
        (b"[" * 198 + b"1," * 30_000 + b"1" + b"]" * 198, "text"),
    ],
)
def test_the_page_of_a_body_is_small_whatever_the_body_is(
    running: RunningBroker, client: TestClient, body: bytes, view: str
) -> None:
    with Producer(running.address) as producer:
        receipt = producer.send(Message("orders", body))
    page = client.get(f"/topics/orders/0/{receipt.queue_offset}")
    assert page.status_code == 200
    assert f'aria-label="Body as {view}"' in page.text
    assert len(page.text) < 600_000


def test_a_decompressed_body_is_bounded_on_every_page(running: RunningBroker, client: TestClient) -> None:
    with Producer(running.address) as producer:
        receipt = producer.send(Message("orders", b"a" * (60 << 20), keys="bomb"))
    at = receipt.queue_offset
    for path in (f"/topics/orders/0/{at}", "/topics/orders?key=bomb&field=a", f"/topics/orders/send?replay=0:{at}"):
        page = client.get(path)
        assert page.status_code == 200, path
        assert len(page.text) < 400_000, path
    assert "more than 1.0" in client.get(f"/topics/orders/0/{at}").text
    assert len(zlib.compress(client.get(f"/topics/orders/0/{at}/body").content)) < 100_000


@pytest.mark.parametrize("path", ["/topics/orders?key=k&", "/topics/orders?", "/topics/orders?from=earliest&"])
def test_no_bodies_means_no_field_of_a_body(running: RunningBroker, path: str) -> None:
    with console_of(running, no_bodies=True) as client:
        page = client.get(f"{path}field=card.0")
        assert page.status_code == 200
        assert "visible" not in page.text
        assert ">k<" in page.text
    with console_of(running) as client:
        assert "visible" in client.get("/topics/orders?key=k&field=card.0").text


# ---- others' work


def test_only_who_began_a_resend_and_administrators_stop_it(
    guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"what": "all", "confirmed": "1"}
    with console_of(guarded) as client:
        log_in(client, "billing", PASSWORD)
        began, go = threading.Event(), threading.Event()

        def run(job: Any) -> None:
            began.set()
            assert go.wait(60)
            job.is_over = True

        monkeypatch.setattr("flintmq.client.console.resend_job.ResendJob.run", run)
        stops: list[str] = []
        monkeypatch.setattr("flintmq.client.console.resend_job.ResendJob.stop", lambda job: stops.append(job.user))
        assert client.post("/dlq/billing/resend", data=form, headers=SAME_SITE).status_code == 303
        assert began.wait(60)
        for user, may in (("nobody", False), ("other", False), ("billing", True), ("ops", True)):
            log_in(client, user, PASSWORD)
            stopped = client.post("/dlq/billing/stop", headers=FORM)
            assert (stopped.status_code == 303) == may, user
        assert stops == ["billing", "billing"]
        go.set()
        log_in(client, "nobody", PASSWORD)
        assert client.post("/dlq/billing/resend", data=form, headers=SAME_SITE).status_code == 403
        assert client.post("/dlq/billing/resend", data={"what": "all"}, headers=SAME_SITE).status_code == 403


# ---- other sites


@pytest.mark.parametrize("path", ["/topics/orders/live/stream", "/topics/orders/0/0/body", "/dlq/billing/export"])
@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"}],
    ids=["cross-site", "same-site", "origin"],
)
def test_streams_and_downloads_are_not_for_other_sites(client: TestClient, path: str, headers: dict[str, str]) -> None:
    assert client.get(path, headers=headers).status_code == 403


def test_downloads_are_for_this_site_and_typed_addresses(client: TestClient) -> None:
    for headers in ({}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert client.get("/topics/orders/0/0/body", headers=headers).status_code == 200


def test_a_copied_command_has_no_control_characters(client: TestClient) -> None:
    key = "a\x1b[201~\x03\nrm -rf 'x' \\ \u202e ü"
    page = client.get("/topics/orders", params={"key": key}).text
    (command,) = re.findall(r'data-copy="(flintmq[^"]*)"', page)
    command = html.unescape(command)
    assert command.isprintable()
    bash = ["bash", "-c", f"printf '%s' {command.rpartition(' orders ')[2]}"]
    assert subprocess.run(bash, capture_output=True, check=True).stdout.decode() == key.strip()
    plain = html.unescape(re.findall(r'data-copy="(flintmq[^"]*)"', client.get("/topics/orders?key=o-1").text)[0])
    assert shlex.split(plain)[-2:] == ["orders", "o-1"]


# ---- any input

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["²", "//[", "9" * 5000, "-" + "9" * 30, "1e999", "0=" + "9" * 18, "@" + "9" * 13, "-9999999w", "\x00", "ä="]
    ),
)
NAMES = (
    "q key from queue tag filter field at up order count view readers cursor first sort after found to "
    "topic id group as parked replay next body base64 properties keys sharding_key delay name queues "
    "hours bytes offsets place what where value before user password right prefix kind action mark opened "
    "typed confirmed "
).split()
FIELDS = st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=6)
PARTS = st.sampled_from(
    ["orders", "billing", "0", "1", "9" * 19, "9" * 5000, "²", "%ff", "ü", "%2F", "a%00b", "//[", "-1"]
)
ROUTES = [
    *((method, path) for method, path, *_ in PAGES if not path.endswith(("/stream", "/close"))),
    ("GET", "/login"),
    ("POST", "/login"),
]


def test_no_input_is_an_error_of_the_console(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    fill(running)
    bury(running, connect(running), "billing", [Message("orders", b"dead")])
    with console_of(running) as client:

        @given(st.sampled_from(ROUTES), st.lists(PARTS, min_size=3, max_size=3), FIELDS, FIELDS, st.booleans())
        @settings(max_examples=200, deadline=None)
        def check(
            route: tuple[str, str], parts: list[str], query: dict[str, str], form: dict[str, str], fits: bool
        ) -> None:
            method, pattern = route
            names = iter(["orders", "0", "0"] if fits else parts)
            path = re.sub(r"\{[^}]*\}", lambda _: next(names), pattern)
            data: dict[str, Any] = {"data": form, "headers": SAME_SITE} if method == "POST" else {}
            response = client.request(method, path, params=query, **data)
            assert response.status_code in (502, 503) or response.status_code < 500, (method, path, query, form)

        check()
        for path, params in (
            ("/topics/orders", {"key": "k", "field": "card.²"}),
            ("/login", {"next": "//["}),
            (f"/topics/orders/{'9' * 5000}/0", {}),
            (f"/clients/{'9' * 19}", {}),
        ):
            assert client.get(path, params=params).status_code in (200, 400, 404), path
