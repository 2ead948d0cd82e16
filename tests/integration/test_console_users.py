"""The console's administration of users: through the broker's own requests, with the rights of the person."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from flintmq.client import Admin, AuthenticationFailed
from flintmq.client.console.pages import users
from tests.conftest import BrokerFactory, RunningBroker
from tests.console_tools import SAME_SITE, console_of, faults_of, log_in, text_of
from tests.group_tools import until
from tests.security_tools import PASSWORD, broker_with_users

GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [{"actions": ["admin"], "broker": True}],
    "viewer": [{"actions": ["query"], "broker": True}],
    "shop": [{"actions": ["publish", "query"], "topic": "orders"}, {"actions": ["consume"], "groupPrefix": "bill"}],
}
CHANGES: list[tuple[str, dict[str, str]]] = [
    ("/users", {"user": "new"}),
    ("/users/shop/grant", {"right": "admin"}),
    ("/users/shop/revoke", {"kind": "topic", "name": "orders", "prefix": "0", "action": "query"}),
    ("/users/shop/password", {"name": "shop"}),
    ("/users/shop/keys", {}),
    ("/users/shop/keys/remove", {"key": "unknown-key"}),
    ("/users/shop/delete", {"name": "shop"}),
]
OPS: dict[str, Any] = {"user": "ops", "password": PASSWORD}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningBroker]:
    with broker_with_users(tmp_path, GRANTS, {"log.audit": tmp_path / "audit.log"}) as made:
        yield made


@pytest.fixture
def client(running: RunningBroker) -> Iterator[TestClient]:
    with console_of(running) as made:
        log_in(made, "ops", PASSWORD)
        yield made


@pytest.fixture
def admin(running: RunningBroker) -> Iterator[Admin]:
    with Admin(running.address, **OPS) as made:
        yield made


def rights_of(admin: Admin, user: str) -> list[dict[str, Any]]:
    return [each.as_json() for each in admin.users(user)[0].grants]


def change(client: TestClient, path: str, **form: str) -> Any:
    return client.post(path, data=form, headers=SAME_SITE)


def test_users_are_listed_with_their_rights(running: RunningBroker, client: TestClient) -> None:
    page = client.get("/users").text
    assert faults_of(page) == []
    assert re.search(r"ops</a></th>\s*<td[^>]*><strong>everything", page)
    assert "publish, query on topic orders; consume on groups that begin with 'bill'" in text_of(page)
    assert 'href="/users" aria-current="page"' in page
    assert "viewer" not in client.get("/users?q=SHO").text
    assert "No user has" in client.get("/users?q=nothing").text


def test_a_user_is_shown_with_each_right_and_key(running: RunningBroker, client: TestClient, admin: Admin) -> None:
    key = admin.add_access_key("shop").key
    page = client.get("/users/shop").text
    assert faults_of(page) == []
    assert "Revoke query on topic orders" in text_of(page)
    assert key in page
    unknown = client.get("/users/nobody")
    assert unknown.status_code == 404
    assert faults_of(unknown.text) == []


def test_long_lists_have_pages(client: TestClient, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "ROWS_MAX", 2)
    first = client.get("/users").text
    assert "1–2 of 3" in first
    assert 'href="/users/viewer"' not in first
    assert 'href="/users/viewer"' in client.get("/users?first=2").text
    client.post("/users/shop/grant", data={"right": "publish", "name": "bills"}, headers=SAME_SITE)
    client.get("/users")  # shows the notice of the change
    assert "topic orders" not in client.get("/users/shop").text
    assert "topic orders" in client.get("/users/shop?first=2").text


def test_a_user_is_added_with_a_password_that_is_shown_once(
    running: RunningBroker, client: TestClient, admin: Admin
) -> None:
    made = change(client, "/users", user="new", password="")
    assert faults_of(made.text) == []
    password = re.findall(r"Password</dt><dd><code>([^<]+)", made.text)[0]
    assert password not in client.get("/users/new").text
    with Admin(running.address, user="new", password=password) as own:
        assert own.whoami().grants == ()
    change(client, "/users", user="boss", password="short", admin="1")
    assert rights_of(admin, "boss") == [{"actions": ["admin"], "broker": True}]
    assert "is easy to guess" in change(client, "/users", user="brief", password="short").text
    again = change(client, "/users", user="new", password="another one")
    assert (again.status_code, faults_of(again.text)) == (400, [])
    assert "new" in text_of(again.text)
    assert change(client, "/users", user="a b", password="x").status_code == 400
    assert change(client, "/users", user="ctl", password="\x07").status_code == 400


def test_rights_are_granted_and_revoked_one_by_one(client: TestClient, admin: Admin) -> None:
    assert change(client, "/users/viewer/grant", right="group", name="bill", prefix="1").status_code == 303
    assert change(client, "/users/viewer/grant", right="consume", name="orders").status_code == 303
    assert rights_of(admin, "viewer")[1:] == [
        {"actions": ["consume"], "groupPrefix": "bill"},
        {"actions": ["consume"], "topic": "orders"},
    ]
    assert "viewer may consume on topic orders" in text_of(client.get("/users/viewer").text)
    form = {"kind": "topic", "name": "orders", "prefix": "0", "action": "query"}
    assert change(client, "/users/shop/revoke", **form).status_code == 303
    assert {"actions": ["publish"], "topic": "orders"} in rights_of(admin, "shop")
    form = {"kind": "group", "name": "bill", "prefix": "1", "action": "consume"}
    assert change(client, "/users/shop/revoke", **form).status_code == 303
    assert rights_of(admin, "shop") == [{"actions": ["publish"], "topic": "orders"}]


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("grant", {"right": "publish"}, "type the name of the topic"),
    ("grant", {"right": "everything"}, "choose a right"),
    ("grant", {"right": "publish", "name": "a*"}, "topic a*"),
    ("grant", {"right": "publish", "name": "%RETRY%", "prefix": "1"}, "covers nothing"),
    ("revoke", {"kind": "topic", "name": "bills", "prefix": "0", "action": "publish"}, "there is no grant"),
    ("revoke", {"kind": "shape", "name": "bills", "prefix": "0", "action": "publish"}, "nothing was revoked"),
    ("revoke", {"name": "orders"}, "nothing was revoked"),
    ("delete", {"name": "shopp"}, "type the name of the user"),
    ("password", {"name": ""}, "type the name of the user"),
    ("keys/remove", {"key": "unknown-key"}, "unknown-key"),
]


def test_a_wrong_change_is_refused(client: TestClient, admin: Admin) -> None:
    before = admin.users()
    for path, form, words in WRONG:
        refused = change(client, f"/users/shop/{path}", **form)
        assert refused.status_code in (400, 404), (path, form)
        assert words in text_of(refused.text)
        assert faults_of(refused.text) == []
    assert admin.users() == before


def test_a_password_is_changed_and_a_user_deleted_after_the_name_was_typed(
    running: RunningBroker, client: TestClient, admin: Admin
) -> None:
    assert change(client, "/users/shop/password", name="shop", password="a new password").status_code == 200
    with Admin(running.address, user="shop", password="a new password") as own:
        assert own.whoami().user == "shop"
        assert change(client, "/users/shop/delete", name="shop").status_code == 303
    assert [each.user for each in admin.users()] == ["ops", "viewer"]
    assert "user shop is deleted" in client.get("/users").text


def test_who_changes_the_own_password_stays_logged_in(running: RunningBroker, client: TestClient) -> None:
    page = change(client, "/users/ops/password", name="ops", password="a new password")
    assert page.status_code == 200
    assert "No answer from the broker" not in page.text
    assert client.get("/users").status_code == 200
    with pytest.raises(AuthenticationFailed), Admin(running.address, **OPS) as own:
        own.whoami()


def test_access_keys_are_added_and_removed(client: TestClient, admin: Admin) -> None:
    page = change(client, "/users/shop/keys").text
    assert faults_of(page) == []
    (key,) = [each.key for each in admin.users("shop")[0].access_keys]
    secret = re.findall(r"Secret key</dt><dd><code>([^<]+)", page)[0]
    assert key in client.get("/users/shop").text
    assert secret not in client.get("/users/shop").text
    assert change(client, "/users/shop/keys/remove", key=key).status_code == 303
    assert admin.users("shop")[0].access_keys == []


def test_every_change_is_in_the_audit_log_with_the_browsers_address(client: TestClient, tmp_path: Path) -> None:
    change(client, "/users", user="new", password="a new password")
    change(client, "/users/new/grant", right="publish", name="orders")
    change(client, "/users/new/delete", name="new")

    def own_lines() -> list[dict[str, str]]:
        lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        return [line for line in lines if line["object"] == "user new"]

    until(lambda: len(own_lines()) == 3, "the last change")  # it is written after the response
    own = own_lines()
    assert {line["user"] for line in own} == {"ops"}
    assert all(line["client"].endswith("for testclient") for line in own)
    assert "a new password" not in (tmp_path / "audit.log").read_text()


def test_the_last_administrator_stays(client: TestClient) -> None:
    form = {"kind": "broker", "name": "", "prefix": "0", "action": "admin"}
    for path, fields in (("revoke", form), ("delete", {"name": "ops"})):
        refused = change(client, f"/users/ops/{path}", **fields)
        assert refused.status_code == 400
        assert "no user with full access would be left" in text_of(refused.text)


def test_who_gives_up_the_own_rights_is_offered_no_users(client: TestClient) -> None:
    change(client, "/users", user="boss", password="a new password", admin="1")
    form = {"kind": "broker", "name": "", "prefix": "0", "action": "admin"}
    assert change(client, "/users/ops/revoke", **form).headers["location"] == "/me"
    assert ">Users</a>" not in client.get("/me").text
    assert client.get("/users").status_code == 403


def test_only_administrators_and_consoles_that_change_things_offer_users(running: RunningBroker, admin: Admin) -> None:
    before = admin.users()
    for read_only, user in ((True, "ops"), (False, "viewer")):
        with console_of(running, read_only=read_only) as client:
            log_in(client, user, PASSWORD)
            assert ">Users</a>" not in client.get("/").text
            for path in ("/users", "/users/shop"):
                page = client.get(path)
                assert page.status_code == 403
                assert "<form method" not in page.text.partition("<main")[2]
            for path, form in CHANGES:
                assert change(client, path, **form).status_code == 403, path
    assert admin.users() == before


def test_a_broker_without_users_has_none_to_show(broker: BrokerFactory) -> None:
    with console_of(broker()) as client:
        page = client.get("/users")
        assert page.status_code == 404
        assert "the broker has no users" in text_of(page.text)
        assert ">Users</a>" not in page.text
