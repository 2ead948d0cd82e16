"""The console's pages against a real broker: what they show, what they refuse, and how much they ask of the broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Message, Producer
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, faults_of, log_in, make_topics, requests_of
from tests.security_tools import PASSWORD, broker_with_users

GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [{"actions": ["admin"], "broker": True}],
    "reader": [{"actions": ["query"], "topic": "orders"}],
    "nobody": [],
}
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def filled(own_broker: RunningBroker) -> RunningBroker:
    """Return a broker with a topic of all kinds of bodies."""
    running = own_broker
    with Producer(running.address) as producer:
        for number in range(120):
            body = json.dumps({"n": number, "user": {"id": f"u{number % 3}"}}).encode()
            producer.send(Message("orders", body, keys=f"o-{number}", tags="eu" if number % 2 else "us"))
        producer.send(Message("orders", f"{EVIL} \u202e\x00 \x1b[31m".encode(), keys=EVIL, properties={EVIL: EVIL}))
        producer.send(Message("orders", b"\xff\x00" + EVIL.encode(), keys="binary"))
        producer.send(Message("orders", msgpack.packb({"a": [1, None]}), keys="packed"))
    return running


@pytest.fixture
def client(filled: RunningBroker) -> Iterator[TestClient]:
    with console_of(filled) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with broker_with_users(tmp_path_factory.mktemp("guarded"), GRANTS, {}) as running:
        with Admin(running.address, user="ops", password=PASSWORD) as admin:
            admin.create_topic("orders")
            admin.create_topic("secret")
        yield running


def detail_of(client: TestClient, key: str) -> str:
    """Return the path of the only message with a key."""
    page: str = client.get("/topics/orders", params={"key": key}).text
    return page.partition('data-dialog href="')[2].partition('"')[0]


# ---- messages


def test_a_topic_shows_its_newest_messages_first(client: TestClient) -> None:
    page = client.get("/topics/orders").text
    assert faults_of(page) == []
    assert "123 messages" in page
    assert page.count("<tr>") == 51  # the heading and 50 messages
    assert page.index("o-119") < page.index("o-118") < page.index("o-73")
    assert "o-72" not in page


def test_pages_lead_there_and_back(client: TestClient) -> None:
    def link(page: str, rel: str) -> str:
        return page.partition(f'rel="{rel}" href="')[2].partition('"')[0].replace("&amp;", "&")

    newest = client.get("/topics/orders").text
    older = client.get(link(newest, "next")).text
    oldest = client.get(link(older, "next")).text
    assert ">o-72<" in older
    assert ">o-0<" in oldest
    assert link(oldest, "next") == ""
    again = client.get(link(oldest, "prev")).text
    assert ">o-72<" in again
    assert again.index(">o-72<") < again.index(">o-71<")
    assert ">o-119<" in client.get(link(again, "prev")).text


@pytest.mark.parametrize("words", ["earliest", "-1h", "0=0"])
def test_a_list_from_a_position_is_oldest_first(client: TestClient, words: str) -> None:
    page = client.get("/topics/orders", params={"from": words}).text
    assert "Oldest first" in page
    assert page.index(">o-0<") < (page.index(">o-4<"))


def test_a_message_is_found_by_its_key_and_by_its_id(client: TestClient) -> None:
    page = client.get(detail_of(client, "o-17"))
    assert page.status_code == 200
    assert faults_of(page.text) == []
    assert "&#34;n&#34;: 17," in page.text
    message_id = page.text.partition("<dt>Id</dt><dd><code>")[2].partition("<")[0]
    assert "o-17" in client.get("/topics/orders", params={"key": message_id}).text
    found = client.get("/search", params={"q": message_id})
    assert (found.status_code, found.headers["location"]) == (303, detail_of(client, "o-17"))
    assert client.get("/search", params={"q": "orders o-17"}).headers["location"] == "/topics/orders?key=o-17"
    assert client.get("/search", params={"q": "orders"}).headers["location"] == "/topics/orders"


def test_a_filter_selects_and_a_wrong_one_is_pointed_at(client: TestClient) -> None:
    page = client.get("/topics/orders", params={"filter": "TAGS = 'eu'", "field": "user.id"}).text
    assert "o-119" in page
    assert "o-118" not in page
    assert ">u2<" in page
    wrong = client.get("/topics/orders", params={"filter": "amount >"})
    assert wrong.status_code == 400
    assert "column 9" in wrong.text
    assert f"amount &gt;\n{' ' * 8}^" in wrong.text


def test_bodies_are_shown_as_what_they_are(client: TestClient) -> None:
    evil = client.get(detail_of(client, EVIL), params={"view": "text"}).text
    assert EVIL not in evil
    assert "&lt;script&gt;" in evil
    assert "\\u202e" in evil
    assert "\u202e" not in evil
    assert "\x1b" not in evil
    assert "00000000  ff 00 3c 73" in client.get(detail_of(client, "binary")).text
    assert 'aria-label="Body as msgpack"' in client.get(detail_of(client, "packed")).text
    as_hex = client.get(detail_of(client, "packed"), params={"view": "hex"}).text
    assert "00000000  81 a1 61 92 01 c0" in as_hex


def test_a_download_is_a_file_and_nothing_that_a_browser_opens(client: TestClient) -> None:
    response = client.get(f"{detail_of(client, 'binary')}/body")
    assert response.content == b"\xff\x00" + EVIL.encode()
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"].startswith("attachment; ")
    assert response.headers["content-security-policy"] == "sandbox"


def test_no_bodies_means_no_bodies(filled: RunningBroker) -> None:
    with console_of(filled, no_bodies=True) as client:
        page = client.get("/topics/orders").text
        assert "&#34;n&#34;" not in page
        detail = client.get(detail_of(client, "o-17"))
        assert detail.status_code == 200
        assert "&#34;n&#34;" not in detail.text
        assert client.get(f"{detail_of(client, 'o-17')}/body").status_code == 403


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/topics/nowhere", 404, "TOPIC_NOT_EXIST"),
        ("/topics/orders/0/99999", 404, "no message at offset 99,999"),
        ("/topics/orders/99/0", 404, "QUEUE_NOT_EXIST"),
        ("/topics/orders?from=yesterday-ish", 400, "is not a position"),
        ("/topics/orders?queue=x", 400, "must be a whole number"),
        ("/topics/orders?at=99999999999999999999", 400, "must be a whole number"),
        ("/topics/SCHEDULE_TOPIC_XXXX", 403, "NO_PERMISSION"),
        ("/nowhere", 404, "there is no such page"),
    ],
)
def test_errors_say_what_is_wrong(client: TestClient, path: str, status: int, words: str) -> None:
    page = client.get(path)
    assert page.status_code == status
    assert words in page.text
    assert faults_of(page.text) == []


# ---- topics


def test_topics_are_listed_filtered_and_created(client: TestClient) -> None:
    made = client.post("/topics", data={"topic": "bills", "queues": "3"}, headers=SAME_SITE)
    assert (made.status_code, made.headers["location"]) == (303, "/topics/bills")
    page = client.get("/topics").text
    assert faults_of(page) == []
    assert "topic bills exists" in page  # the notice of the change, once
    assert "topic bills exists" not in client.get("/topics").text
    assert "orders" not in client.get("/topics?q=bill").text.partition("<tbody>")[2]


def test_a_thousand_topics_are_one_page_of_fifty(broker: BrokerFactory, connect: ConnectionFactory) -> None:
    running = broker()
    make_topics(connect(running), 1000)
    with console_of(running) as client:
        page = client.get("/topics").text
        assert page.count('<tr id="t-') == 50
        assert "1–50 of 1,000" in page
        assert "t0050" in client.get("/topics?first=50").text
        assert requests_of(running, lambda: client.get("/topics?sort=messages")) <= 3


def test_the_list_shows_a_change_of_this_console_and_a_topic_of_another_client_at_once(
    filled: RunningBroker, client: TestClient
) -> None:
    with Admin(filled.address) as admin:
        admin.create_topic("receipts", 1)
        assert "read, write" in client.get("/topics?q=receipts").text
        assert client.post("/topics/receipts/config", data={"read": "1"}, headers=SAME_SITE).status_code == 303
        assert "read, write" not in client.get("/topics?q=receipts").text
        admin.create_topic("invoices", 1)
        assert "/topics/invoices" in client.get("/topics").text


def test_the_broker_checks_a_filter_before_it_is_used(filled: RunningBroker, client: TestClient) -> None:
    wrong = client.get("/topics/orders", params={"check": "1", "filter": "amount > <b>"})
    assert wrong.headers["content-type"] == "application/json"
    assert wrong.json()["column"] == 10
    assert wrong.json()["filter"] == "amount > <b>"
    assert "expected" in wrong.json()["error"]
    assert client.get("/topics/orders?check=1&filter=amount+%3E+5").json() == {}
    assert client.get("/topics/orders?check=1").json() == {}
    assert requests_of(filled, lambda: client.get("/topics/orders?check=1&filter=amount+%3E+5")) == 1
    assert client.get("/topics/nowhere?check=1&filter=a").status_code == 404


# ---- security


def test_every_page_has_the_security_headers(client: TestClient) -> None:
    headers = client.get("/topics").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert client.get("/topics", headers={"host": "evil.example"}).status_code == 421
    cross_site = client.post("/topics", data={"topic": "bills"}, headers={"sec-fetch-site": "cross-site"})
    assert cross_site.status_code == 403
    assert policy != client.get("/topics").headers["content-security-policy"]  # the nonce is new


def test_a_login_is_the_brokers(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        asked = client.get("/topics?q=x")
        assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/topics%3Fq%3Dx")
        assert faults_of(client.get("/login").text) == []
        refused = log_in(client, "ops", "wrong")
        assert refused.status_code == 403
        assert 'role="alert"' in refused.text
        entered = log_in(client, "ops", PASSWORD)
        assert (entered.status_code, entered.headers["location"]) == (303, "/topics")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
        assert "secret" in client.get("/topics").text
        with Admin(guarded.address, user="ops", password=PASSWORD) as admin:
            names = [each.client for each in admin.connections() if each.user == "ops"]
            assert any(name.startswith("console/") and name.endswith(" for testclient") for name in names)
        assert client.post("/logout", headers=SAME_SITE).status_code == 303
        assert client.get("/topics").status_code == 303


def test_users_see_what_the_broker_lets_them_see(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        log_in(client, "reader", PASSWORD)
        page = client.get("/topics").text
        assert "orders" in page
        assert "secret" not in page
        assert "Create a topic" not in page
        assert client.get("/topics/secret").status_code == 403
        assert client.post("/topics", data={"topic": "mine"}, headers=SAME_SITE).status_code == 403


def test_a_login_leads_to_this_console_only(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        for elsewhere in ("//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
            form = {"user": "ops", "password": PASSWORD, "next": elsewhere}
            assert client.post("/login", data=form, headers=SAME_SITE).headers["location"] == "/"


def test_a_link_from_another_site_loads_again_to_send_the_cookie(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        page = client.get("/topics/orders?key=%22%3E", headers={"sec-fetch-site": "cross-site"})
        assert page.status_code == 200
        assert 'content="0;url=/topics/orders?key=%22%3E"' in page.text
