"""Sessions of the console: when they end, how many there are, and what their cookies say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin
from flintmq.client.console.sessions import (
    FREE_FAILURES,
    IDLE_SECONDS,
    LIFE_SECONDS,
    SESSIONS_PER_USER_MAX,
    WAIT_SECONDS,
)
from tests.conftest import RunningBroker
from tests.console_tools import console_of, log_in
from tests.group_tools import until
from tests.security_tools import PASSWORD, broker_with_users, set_user

GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [{"actions": ["admin"], "broker": True}],
    "reader": [{"actions": ["query"], "topic": "orders"}],
    "guesser": [],
}


class HandClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with broker_with_users(tmp_path_factory.mktemp("guarded"), GRANTS, {}) as running:
        yield running


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def client(guarded: RunningBroker, clock: HandClock) -> Iterator[TestClient]:
    with console_of(guarded, clock) as made:
        yield made


def consoles(running: RunningBroker) -> int:
    """Return how many of the broker's connections belong to a console."""
    with Admin(running.address, user="ops", password=PASSWORD) as admin:
        return sum(1 for each in admin.connections() if each.client.startswith("console/"))


def is_alive(client: TestClient, cookie: str) -> bool:
    """Return whether a session's cookie still opens a page."""
    return bool(client.get("/me", headers={"cookie": f"flintmq_console_10980={cookie}"}).status_code == 200)


def test_an_idle_session_ends_and_lets_go_of_the_broker(
    guarded: RunningBroker, client: TestClient, clock: HandClock
) -> None:
    log_in(client, "ops", PASSWORD)
    assert client.get("/topics").status_code == 200
    clock.now += IDLE_SECONDS - 1
    assert client.get("/topics").status_code == 200  # the time begins again
    clock.now += IDLE_SECONDS - 1
    assert client.get("/topics").status_code == 200
    assert consoles(guarded) > 0
    clock.now += IDLE_SECONDS + 1
    assert client.get("/topics").status_code == 303
    until(lambda: consoles(guarded) == 0)


def test_a_session_ends_twelve_hours_after_the_login(client: TestClient, clock: HandClock) -> None:
    log_in(client, "ops", PASSWORD)
    for _ in range(int(LIFE_SECONDS / IDLE_SECONDS)):
        clock.now += IDLE_SECONDS - 1
        assert client.get("/topics").status_code == 200
    clock.now += IDLE_SECONDS - 1
    assert client.get("/topics").status_code == 303


def test_a_user_has_few_sessions_and_the_oldest_ends(client: TestClient) -> None:
    cookies = []
    for _ in range(SESSIONS_PER_USER_MAX + 1):
        client.cookies.clear()
        log_in(client, "ops", PASSWORD)
        cookies.append(client.cookies["flintmq_console_10980"])
    client.cookies.clear()
    assert len({*cookies}) == SESSIONS_PER_USER_MAX + 1
    assert [is_alive(client, cookie) for cookie in cookies] == [False] + [True] * SESSIONS_PER_USER_MAX


def test_a_guesser_may_try_again_later(client: TestClient, clock: HandClock) -> None:
    for _ in range(FREE_FAILURES):
        assert log_in(client, "guesser", "wrong").status_code == 403
    refused = log_in(client, "guesser", PASSWORD)
    assert refused.status_code == 429
    assert "try again in 30 s" in refused.text
    clock.now += WAIT_SECONDS
    assert log_in(client, "guesser", PASSWORD).status_code == 303


def test_a_new_login_has_a_new_session(client: TestClient) -> None:
    log_in(client, "ops", PASSWORD)
    first = client.cookies["flintmq_console_10980"]
    log_in(client, "reader", PASSWORD)
    second = client.cookies["flintmq_console_10980"]
    client.cookies.clear()
    assert is_alive(client, second)
    assert not is_alive(client, first)  # the browser's earlier session is over


def test_a_session_ends_when_the_broker_no_longer_accepts_its_user(guarded: RunningBroker, client: TestClient) -> None:
    log_in(client, "reader", PASSWORD)
    assert client.get("/me").status_code == 200
    set_user(guarded.store, "reader", "another password")
    until(lambda: client.get("/me").status_code == 303)
    set_user(guarded.store, "reader", PASSWORD)
    until(lambda: log_in(client, "reader", PASSWORD).status_code != 403)


def test_cookies_of_an_encrypted_console_are_for_this_host_alone(guarded: RunningBroker) -> None:
    with console_of(guarded, behind_proxy=True) as client:
        cookie = log_in(client, "ops", PASSWORD).headers["set-cookie"]
        assert cookie.startswith("__Host-flintmq_console_10980=")
        assert "Secure" in cookie
        headers = client.get("/login").headers
        assert headers["strict-transport-security"].startswith("max-age=")


def test_further_names_of_the_page_are_allowed(guarded: RunningBroker) -> None:
    with console_of(guarded, hosts=("console.example",)) as client:
        assert client.get("/login", headers={"host": "console.example"}).status_code == 200
        assert client.get("/login", headers={"host": "console.example:8443"}).status_code == 200
        assert client.get("/login", headers={"host": "other.example"}).status_code == 421
