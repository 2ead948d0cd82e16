"""The console's pages for the people who run the broker: clients, settings, the person's own page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, Consumer, Message, Producer
from flintmq.client.console.pages import broker as store
from flintmq.client.console.pages.broker import health
from flintmq.client.operator.condition import Condition
from flintmq.protocol.storage.delivery import dead_letter_topic
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, faults_of, log_in, next_page, requests_of
from tests.dead_letter_tools import send_back
from tests.group_tools import until
from tests.integration.test_quarantine import damaged_store
from tests.prepared_tools import PREFIX, prepare
from tests.security_tools import PASSWORD, broker_with_users
from tests.transaction_tools import listed, send_half

GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [{"actions": ["admin"], "broker": True}],
    "viewer": [{"actions": ["query"], "broker": True}],
    "reader": [{"actions": ["query"], "topic": "orders"}, {"actions": ["consume"], "groupPrefix": "bill"}],
    "nobody": [],
}
EVIL = "<script>alert(1)</script>"
OPEN = ["/", "/store", "/waiting", "/waiting/transactions", "/waiting/transactions?parked=1", "/waiting/stages", "/me"]
"""Pages that every user sees, at least a part of them."""
RESTRICTED = ["/clients", "/settings", "/settings/retention.file_reserved_hours"]
HOURS = "/settings/retention.file_reserved_hours"


@pytest.fixture(scope="module")
def running(own_broker: RunningBroker) -> RunningBroker:
    return own_broker


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with broker_with_users(tmp_path_factory.mktemp("guarded"), GRANTS, {}) as running:
        yield running


def test_users_with_few_rights_see_what_they_may_and_the_reason_for_the_rest(guarded: RunningBroker) -> None:
    for user in ("viewer", "reader", "nobody"):
        with console_of(guarded) as client:
            log_in(client, user, PASSWORD)
            pages = {path: client.get(path) for path in (*OPEN, *RESTRICTED)}
            for path, page in pages.items():
                is_refused = user != "viewer" and path not in OPEN
                assert page.status_code == (403 if is_refused else 200), (user, path)
                assert ("NO_PERMISSION" in page.text) == is_refused, (user, path)
                assert faults_of(page.text) == [], (user, path)
                assert "change<span" not in page.text
            for path, hidden in (("/", "✓ good"), ("/store", "retention."), ("/waiting", "delay level")):
                assert ("--query-broker" in pages[path].text) == (user != "viewer"), (user, path)
                assert (hidden in pages[path].text) == (user == "viewer"), (user, path)


# ---- overview


def test_the_overview_says_how_the_broker_is_and_who_lags(
    running: RunningBroker, client: TestClient, connect: ConnectionFactory
) -> None:
    with Producer(running.address) as producer, Consumer(running.address) as consumer:
        receipts = producer.send_many([Message("orders", b"x") for _ in range(30)], queue=0)
        send_back(connect(running), "billing", [each.physical_offset for each in receipts[:7]])
        for topic, offset in (("orders", 10), (dead_letter_topic("billing"), 2)):
            consumer.commit("billing", topic, {0: offset})
    page = client.get("/").text
    assert faults_of(page) == []
    assert page.count("✓ good") >= 5
    assert re.search(r"/groups/billing.*?>20<", page, re.DOTALL)
    assert re.search(r"/dlq/billing.*?>5<", page, re.DOTALL)


def test_the_overview_shares_the_figures_of_the_topics(running: RunningBroker, client: TestClient) -> None:
    client.get("/")
    # The sampler asks every two seconds besides: one of three measurements is without it.
    assert min(requests_of(running, lambda: client.get("/")) for _ in range(3)) == 1


def test_health_looks_at_what_is_wrong_first() -> None:
    figures = {
        "write_refusal": f"the disk is full {EVIL}",
        "write_offset": 1 << 30,
        "flushed_offset": 1 << 30,
        "reput_offset": 0,
        "disk_free_bytes": 1,
        "disk_total_bytes": 100,
        "quarantined_holes": 1,
        "lost_messages": 2,
    }
    found = health(Condition(figures))
    assert [each.name for each in found if not each.is_good] == ["Messages", "Queues", "Index", "Disk", "Quarantine"]
    assert [each.name for each in found if each.is_good] == ["Flush"]
    assert not found[0].is_good
    assert found[-1].is_good


# ---- store


def test_the_store_says_which_file_goes_next(broker: BrokerFactory) -> None:
    running = broker()
    with console_of(running) as client, Producer(running.address, compress_over=None) as producer:
        assert "No file is deleted next" in client.get("/store").text
        producer.send_bulk("orders", [bytes(100_000)] * 200, queue=0)
        until(lambda: "Deleted next" in client.get("/store").text)
        page = client.get("/store").text
    assert faults_of(page) == []
    assert "<code>00000000000000000000</code>" in page
    assert "of 72 h old" in page or "the disk is" in page
    assert re.search(r'When</dt><dd><time datetime="\d{4}-', page)


def test_the_store_shows_places_disk_retention_and_lost_messages(
    broker: BrokerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = damaged_store(tmp_path / "damaged")
    running = broker(store=tmp_path / "damaged")
    with console_of(running) as client:
        page = client.get("/store").text
        assert faults_of(page) == []
        for words in ("written", "flushed", "queues", "index", "oldest", "retention.file_reserved_hours", "% used"):
            assert words in page
        assert f"{len(lost):,} lost messages" in page
        assert "/topics/wide?queue=0&amp;from=0%3D0" in page
        assert "more ranges" in page
        monkeypatch.setattr(store, "ENTRIES_MAX", 1)
        offsets = []
        url = "/store"
        while url:
            page = client.get(url).text
            offsets += re.findall(r'<th scope="row" class="number">([\d,]+)<', page)
            url = next_page(page)
        assert len(offsets) > 2
        assert offsets == sorted(offsets, key=lambda text: int(text.replace(",", "")))


def test_marks_are_where_they_are_in_the_log() -> None:
    figures = {
        "min_physical_offset": 1000,
        "write_offset": 3000,
        "flushed_offset": 2500,
        "reput_offset": 3000,
        "index_behind_bytes": 2000,
        "checkpoint_offset": 2000,
        "flush_behind_ms": 1500,
        "reput_behind_ms": 0,
        "checkpoint_behind_ms": 4000,
    }
    found = {mark.name: (mark.at, mark.behind, mark.seconds, mark.x) for mark in store.marks(Condition(figures))}
    assert found == {
        "written": (3000, 0, None, 1000.0),
        "flushed": (2500, 500, 1.5, 750.0),
        "queues": (3000, 0, 0.0, 1000.0),
        "index": (1000, 2000, 0.0, 0.0),
        "checkpoint": (2000, 1000, 4.0, 500.0),
        "oldest": (1000, 2000, None, 0.0),
    }
    del figures["checkpoint_offset"], figures["flush_behind_ms"]  # a broker of an earlier release
    assert [mark.seconds for mark in store.marks(Condition(figures)) if mark.name in ("flushed", "checkpoint")] == [
        None
    ]
    assert store.marks(Condition({})) == []


def test_the_checkpoint_is_behind_until_the_broker_makes_one(broker: BrokerFactory) -> None:
    running = broker("--flush", "async", settings={"background.services:CHECKPOINT_S": 3_600})
    with Producer(running.address) as producer, console_of(running) as client:
        producer.send(Message("orders", bytes(10_000)))
        until(lambda: re.search(r">checkpoint<.*?in time\">(?!0 s)[\d.]+ m?s<", client.get("/store").text) is not None)


# ---- waiting


def test_delays_are_shown_by_level_and_hour(running: RunningBroker, client: TestClient) -> None:
    with Producer(running.address) as producer:
        producer.send(Message("orders", b"x", delay_level=18))
        producer.send(Message("orders", b"x", delay=timedelta(hours=2)))
    page = client.get("/waiting").text
    assert faults_of(page) == []
    assert "level 18" in page
    assert "<meter" in page


def test_transactions_are_committed_and_rolled_back_by_a_form(
    running: RunningBroker, client: TestClient, connect: ConnectionFactory
) -> None:
    connection = connect(running)
    halves = [send_half(connection, "orders", b"x", number) for number in (1, 2, 3)]
    page = client.get("/waiting/transactions").text
    assert faults_of(page) == []
    assert "3 open, 0 parked" in page
    for half, outcome in zip(halves, ("commit", "rollback"), strict=False):
        found = re.search(rf'href="(/waiting/transactions/end\?id={half.transaction_id}[^"]*as={outcome})"', page)
        assert found is not None
        confirm = client.get(found[1].replace("&amp;", "&")).text
        assert faults_of(confirm) == []
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', confirm))
        done = client.post("/waiting/transactions/end", data=form, headers=SAME_SITE)
        assert (done.status_code, done.headers["location"]) == (303, "/waiting/transactions")
    assert [each["id"] for each in listed(connection)] == [halves[2].transaction_id]
    assert client.post("/waiting/transactions/end", data={**form, "as": ""}, headers=SAME_SITE).status_code == 400
    assert client.post("/waiting/transactions/end", data={**form, "as": "commit"}, headers=SAME_SITE).status_code == 502
    with console_of(running, read_only=True) as reader:
        assert "as=commit" not in reader.get("/waiting/transactions").text
        form["id"] = halves[2].transaction_id
        assert reader.post("/waiting/transactions/end", data=form, headers=SAME_SITE).status_code == 403
    assert len(listed(connection)) == 1


def test_stages_are_dropped_by_their_name(
    running: RunningBroker, client: TestClient, connect: ConnectionFactory
) -> None:
    connection = connect(running)
    names = (f"q/{EVIL}.1", f"q/{EVIL}.10", "other")
    for number, name in enumerate(names):
        prepare(connection, name, "orders", b"x", unique_prefix=PREFIX, unique_first=number)
    page = client.get("/waiting/stages").text
    assert faults_of(page) == []
    assert EVIL not in page
    url = re.search(r'href="(/waiting/stages/drop\?name=q[^"]*\.1)"', page)
    assert url is not None
    form_page = client.get(url[1]).text
    assert faults_of(form_page) == []
    assert "2 stages with a name" in form_page
    form = {"name": names[0], "typed": "q"}
    assert client.post("/waiting/stages/drop", data=form, headers=SAME_SITE).status_code == 400
    form["typed"] = names[0]
    with console_of(running, read_only=True) as reader:
        assert reader.post("/waiting/stages/drop", data=form, headers=SAME_SITE).status_code == 403
    assert client.post("/waiting/stages/drop", data=form, headers=SAME_SITE).status_code == 303
    page = client.get("/waiting/stages").text
    assert "dropped 2 stages" in page
    assert "1 open" in page


# ---- clients


def test_clients_are_listed_and_found_by_name(running: RunningBroker, client: TestClient) -> None:
    with Admin(running.address, client_name=f"shop {EVIL}") as shop:
        shop.topics()
        page = client.get("/clients").text
        assert "&lt;script&gt;" in page
        assert EVIL not in page
        found = client.get("/clients", params={"q": "SHOP"}).text
        assert found.count('<tr id="c-') == 1
    assert "None of" in client.get("/clients", params={"q": "no such"}).text


def test_a_connection_is_closed_after_a_page_that_shows_whose_it_is(running: RunningBroker, client: TestClient) -> None:
    with Admin(running.address, client_name=EVIL) as admin:
        (own,) = [each for each in admin.connections() if each.client == EVIL]
        client.get("/clients")
        assert f'href="/clients/{own.id}"' in client.get("/clients").text
        page = client.get(f"/clients/{own.id}")
        assert faults_of(page.text) == []
        assert EVIL not in page.text
        assert f"127.0.0.1:{own.port}" in page.text
        assert requests_of(running, lambda: client.get(f"/clients/{own.id}")) <= 3
        form = {"opened": str(own.opened_ms - 1)}
        assert client.post(f"/clients/{own.id}/close", data=form, headers=SAME_SITE).status_code == 400
        form = {"opened": str(own.opened_ms)}
        assert client.post(f"/clients/{own.id}/close", data=form, headers=SAME_SITE).status_code == 303
        assert "is closed" in client.get("/clients").text
        until(lambda: client.get(f"/clients/{own.id}").status_code == 404)


def test_the_consoles_own_connection_can_be_closed(running: RunningBroker, client: TestClient) -> None:
    client.get("/clients")
    with Admin(running.address) as admin:
        own = next(each for each in admin.connections() if each.client.startswith("console/"))
        done = client.post(f"/clients/{own.id}/close", data={"opened": ""}, headers=SAME_SITE)
        assert done.status_code == 303
        until(lambda: own.id not in [each.id for each in admin.connections()])
        assert client.get("/clients").status_code == 200


def test_a_read_only_console_and_a_viewer_close_no_connection_and_change_no_setting(guarded: RunningBroker) -> None:
    for read_only, user in ((True, "ops"), (False, "viewer")):
        with (
            console_of(guarded, read_only=read_only) as client,
            Admin(guarded.address, user="ops", password=PASSWORD) as admin,
        ):
            log_in(client, user, PASSWORD)
            own = admin.connections()[-1]
            assert f'href="/clients/{own.id}"' not in client.get("/clients").text
            assert "<form method" not in client.get(f"/clients/{own.id}").text.partition("<main")[2]
            form = {"opened": str(own.opened_ms)}
            assert client.post(f"/clients/{own.id}/close", data=form, headers=SAME_SITE).status_code == 403
            assert own.id in [each.id for each in admin.connections()]
            assert "<form method" not in client.get(HOURS).text.partition("<main")[2]
            form = {"before": "72", "value": "24"}
            assert client.post(HOURS, data=form, headers=SAME_SITE).status_code == 403


def test_many_clients_are_several_pages(
    running: RunningBroker, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ROWS_MAX", 2)
    admins = [Admin(running.address, client_name=f"mart {number}") for number in range(5)]
    try:
        for admin in admins:
            admin.topics()
        for words in ("", "mart"):
            names: list[str] = []
            url = f"/clients?q={words}"
            while url:
                page = client.get(url).text
                names += re.findall(r"mart (\d)", page.partition("<tbody>")[2])
                url = next_page(page)
            assert names == ["0", "1", "2", "3", "4"]
    finally:
        for admin in admins:
            admin.close()


# ---- settings


def test_a_setting_is_changed_and_marked(running: RunningBroker, client: TestClient) -> None:
    assert "0 of " in client.get("/settings").text
    assert 'name="before" value="72"' in client.get(HOURS).text
    done = client.post(HOURS, data={"before": "72", "value": "24"}, headers=SAME_SITE)
    assert (done.status_code, done.headers["location"].partition("#")[0]) == (303, "/settings")
    page = client.get("/settings?changed=1").text
    assert "is 24, it was 72" in page
    assert page.count("≠ changed") == 1
    assert "retention.delete_when" not in page
    stale = client.post(HOURS, data={"before": "72", "value": "12"}, headers=SAME_SITE)
    assert stale.status_code == 409
    assert "Changed in the meantime" in stale.text
    with Admin(running.address) as admin:
        assert {each.name: each.value for each in admin.settings()}["retention.file_reserved_hours"] == 24
    unknown = client.post("/settings/nothing.at_all", data={"before": "72", "value": "1"}, headers=SAME_SITE)
    assert unknown.status_code == 404
    assert "no setting nothing.at_all" in unknown.text


# ---- me


def test_my_rights_and_sessions_are_shown_and_one_can_be_ended(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        log_in(client, "reader", PASSWORD)
        other = client.cookies["flintmq_console_10980"]
        client.cookies.clear()
        log_in(client, "reader", PASSWORD)
        page = client.get("/me").text
        assert "topic orders" in page
        assert "groups that begin with &#39;bill&#39;" in page
        assert page.count("(this one)") == 1
        assert other not in page
        first, this = re.findall(r'name="mark" value="(\w+)"', page)
        assert client.post("/me/end", data={"mark": first}, headers=SAME_SITE).headers["location"] == "/me"
        assert client.post("/me/end", data={"mark": first}, headers=SAME_SITE).status_code == 404
        assert client.get("/topics", headers={"cookie": f"flintmq_console_10980={other}"}).status_code == 303
        assert client.get("/topics").status_code == 200
        assert client.post("/me/end", data={"mark": this}, headers=SAME_SITE).headers["location"] == "/login"
        assert client.get("/topics").status_code == 303


def test_a_user_cannot_end_the_session_of_another_one(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        log_in(client, "ops", PASSWORD)
        (mark,) = re.findall(r'name="mark" value="(\w+)"', client.get("/me").text)
        client.cookies.clear()
        log_in(client, "reader", PASSWORD)
        assert client.post("/me/end", data={"mark": mark}, headers=SAME_SITE).status_code == 404


def test_a_broker_without_users_has_no_rights_to_show(client: TestClient) -> None:
    assert "has no users" in client.get("/me").text
