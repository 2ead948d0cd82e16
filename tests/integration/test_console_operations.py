"""The console's pages for the people who run the broker: clients, settings, the person's own page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin
from flintmq.client.console.pages import clients
from tests.conftest import BrokerFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, faults_of, log_in, requests_of
from tests.security_tools import PASSWORD, broker_with_users

GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [{"actions": ["admin"], "broker": True}],
    "viewer": [{"actions": ["query"], "broker": True}],
    "reader": [{"actions": ["query"], "topic": "orders"}, {"actions": ["consume"], "groupPrefix": "bill"}],
    "nobody": [],
}
EVIL = "<script>alert(1)</script>"
PAGES = ["/clients", "/clients?q=console", "/settings", "/settings/retention.file_reserved_hours", "/me"]
HOURS = "/settings/retention.file_reserved_hours"


@pytest.fixture
def running(broker: BrokerFactory) -> RunningBroker:
    return broker()


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        yield made


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningBroker]:
    with broker_with_users(tmp_path, GRANTS, {}) as running:
        yield running


@pytest.mark.parametrize("path", PAGES)
def test_a_page_of_an_empty_broker_is_whole_and_takes_at_most_three_requests(
    running: RunningBroker, client: TestClient, path: str
) -> None:
    page = client.get(path)
    assert page.status_code == 200
    assert faults_of(page.text) == []
    assert requests_of(running, lambda: client.get(path)) <= 3


@pytest.mark.parametrize("user", ["viewer", "reader", "nobody"])
@pytest.mark.parametrize("path", PAGES)
def test_a_user_with_few_rights_sees_a_page_or_the_reason(guarded: RunningBroker, user: str, path: str) -> None:
    with console_of(guarded) as client:
        log_in(client, user, PASSWORD)
        page = client.get(path)
        is_refused = user != "viewer" and path != "/me"
        assert page.status_code == (403 if is_refused else 200)
        assert ("NO_PERMISSION" in page.text) == is_refused
        assert faults_of(page.text) == []
        assert 'data-dialog href="/settings/' not in page.text


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


def test_many_clients_are_several_pages(
    running: RunningBroker, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ROWS_MAX", 2)
    admins = [Admin(running.address, client_name=f"shop {number}") for number in range(5)]
    try:
        for admin in admins:
            admin.topics()
        for words in ("", "shop"):
            names: list[str] = []
            url = f"/clients?q={words}"
            while url:
                page = client.get(url).text
                names += re.findall(r"shop (\d)", page.partition("<tbody>")[2])
                url = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
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


@pytest.mark.parametrize(
    ("path", "value", "status", "words"),
    [
        (HOURS, "-5", 400, "retention.file_reserved_hours"),
        ("/settings/nothing.at_all", "1", 404, "no setting nothing.at_all"),
    ],
)
def test_a_wrong_change_is_refused(client: TestClient, path: str, value: str, status: int, words: str) -> None:
    refused = client.post(path, data={"before": "72", "value": value}, headers=SAME_SITE)
    assert refused.status_code == status
    assert words in refused.text


def test_a_read_only_console_and_a_viewer_change_no_setting(guarded: RunningBroker) -> None:
    form = {"before": "72", "value": "24"}
    for options, user in (({"read_only": True}, "ops"), ({}, "viewer")):
        with console_of(guarded, **options) as client:
            log_in(client, user, PASSWORD)
            assert "<form method" not in client.get(HOURS).text.partition("<main")[2]
            assert client.post(HOURS, data=form, headers=SAME_SITE).status_code == 403


# ---- me


def test_my_rights_and_sessions_are_shown_and_one_can_be_ended(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        log_in(client, "reader", PASSWORD)
        other = client.cookies["flintmq_console"]
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
        assert client.get("/topics", headers={"cookie": f"flintmq_console={other}"}).status_code == 303
        assert client.get("/topics").status_code == 200
        assert client.post("/me/end", data={"mark": this}, headers=SAME_SITE).headers["location"] == "/login"
        assert client.get("/topics").status_code == 303


def test_nobody_ends_the_session_of_another_user(guarded: RunningBroker) -> None:
    with console_of(guarded) as client:
        log_in(client, "ops", PASSWORD)
        (mark,) = re.findall(r'name="mark" value="(\w+)"', client.get("/me").text)
        client.cookies.clear()
        log_in(client, "reader", PASSWORD)
        assert client.post("/me/end", data={"mark": mark}, headers=SAME_SITE).status_code == 404


def test_a_broker_without_users_has_no_rights_to_show(client: TestClient) -> None:
    assert "has no users" in client.get("/me").text
