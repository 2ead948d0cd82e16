"""Access keys of RocketMQ's clients: signed requests, refused ones, and what a user may do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Admin
from flintmq.protocol.auth.users import USERS_FILE
from flintmq.protocol.frames import REQUEST
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.command import ACCESS_KEY, BINARY_HEADER, JSON_HEADER, SIGNATURE, encode_head, signed
from tests.overload_tools import soon
from tests.remoting_keys import (
    ADMIN_GRANT,
    SECRET,
    SignedSocket,
    key_of,
    remoting_broker_with_users,
    set_users_with_keys,
)
from tests.remoting_tools import RemotingBroker, send_fields
from tests.security_tools import PASSWORD

GRANTS: dict[str, list[dict[str, Any]]] = {
    "ops": [ADMIN_GRANT],
    "shop": [{"actions": ["publish"], "topic": "orders"}],
    "billing": [{"actions": ["consume"], "topic": "orders"}, {"actions": ["consume"], "group": "bills"}],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingBroker]:
    """A broker with users that has the topic ``orders``, for tests that change no user."""
    with remoting_broker_with_users(tmp_path_factory.mktemp("users"), GRANTS) as gateway:
        with SignedSocket(gateway.address, "ops") as ops:
            assert ops.produce("orders").code == codes.SUCCESS
        yield gateway


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RemotingBroker]:
    """A broker with users for one test."""
    with remoting_broker_with_users(tmp_path, GRANTS) as gateway:
        yield gateway


def audit_of(gateway: RemotingBroker) -> list[dict[str, Any]]:
    text = (gateway.running.store.parent / "audit.log").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
def test_a_signed_request_is_served_as_its_user(gateway: RemotingBroker, header_type: int) -> None:
    with SignedSocket(gateway.address, "shop", header_type=header_type) as shop:
        stored = shop.produce("orders", b"signed")
        assert stored.code == codes.SUCCESS, stored.remark
        assert stored.header_type == header_type
        with Admin(gateway.running.address, user="ops", password=PASSWORD) as admin:
            [mine] = [each for each in admin.connections() if each.user == "shop"]
            assert mine.client == "rocketmq other 5.3.3"


@pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
def test_a_request_without_a_key_is_refused_with_the_way_to_get_one(gateway: RemotingBroker, header_type: int) -> None:
    with gateway.connect(header_type) as client:
        refused = client.produce("orders")
        assert refused.code == codes.NO_PERMISSION
        assert refused.header_type == header_type
        assert "flintmq user key add" in refused.remark
        assert "AccessKey" in refused.remark


def test_routes_need_no_key_on_loopback(gateway: RemotingBroker) -> None:
    with gateway.connect() as client:
        assert client.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == codes.SUCCESS
        assert client.call(codes.GET_BROKER_CLUSTER_INFO).code == codes.SUCCESS
        assert client.call(codes.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0}).code == codes.NO_PERMISSION


def test_routes_need_a_key_if_they_are_not_open(tmp_path: Path) -> None:
    with remoting_broker_with_users(tmp_path, GRANTS, {"remoting.open_routes": False}) as gateway:
        with gateway.connect() as client:
            assert client.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == codes.NO_PERMISSION
        with SignedSocket(gateway.address, "shop") as shop:
            assert shop.call(codes.GET_BROKER_CLUSTER_INFO).code == codes.SUCCESS


def test_a_wrong_signature_is_refused_and_audited(own: RemotingBroker) -> None:
    for secret in ("another secret key", SECRET.upper()):
        with SignedSocket(own.address, "shop", secret) as wrong:
            for _ in range(3):  # those that come before the next turn of their address are refused without a look
                refused = wrong.produce("orders")
                assert refused.code == codes.NO_PERMISSION
                assert key_of("shop") in refused.remark
                assert SECRET not in refused.remark
    failures = [entry for entry in audit_of(own) if entry["action"] == "AUTH"]
    assert {entry["object"] for entry in failures} == {f"access key {key_of('shop')}"}
    assert 2 <= len(failures) == own.running.log.count("failed to authenticate as")
    with SignedSocket(own.address, "shop") as right:  # waits for the pause after failed attempts
        assert right.produce("orders").code == codes.SUCCESS


def test_a_wrong_signature_between_right_ones_is_refused_alone(own: RemotingBroker) -> None:
    with SignedSocket(own.address, "shop") as shop:
        assert shop.produce("orders").code == codes.SUCCESS
        shop.secret = "another secret key"
        assert shop.produce("orders").code == codes.NO_PERMISSION
        shop.secret = SECRET
        assert shop.produce("orders").code == codes.SUCCESS


def test_a_right_secret_is_accepted_once_the_turn_of_its_address_has_come(own: RemotingBroker) -> None:
    with SignedSocket(own.address, "shop", "another secret key") as shop:
        assert shop.produce("orders").code == codes.NO_PERMISSION
        shop.secret = SECRET
        soon(lambda: shop.produce("orders").code == codes.SUCCESS)


def test_a_key_that_no_user_has_is_answered_as_a_wrong_secret(gateway: RemotingBroker) -> None:
    with SignedSocket(gateway.address, "nobody") as unknown:
        refused = unknown.produce("orders")
        assert refused.code == codes.NO_PERMISSION
        assert "is unknown, or its signature is wrong" in refused.remark


CHANGES: dict[str, Any] = {
    "another topic": ({"b": "bills"}, b"body"),
    "another body": ({}, b"BODY"),
    "a field more": ({"zzz": "1"}, b"body"),
    "no signature": ({SIGNATURE: ""}, b"body"),
    "a signature that is not base64": ({SIGNATURE: "§§§"}, b"body"),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda name: name.replace(" ", "-"))
def test_a_request_that_was_changed_after_it_was_signed_is_refused(own: RemotingBroker, change: str) -> None:
    fields = {name: str(value) for name, value in send_fields("orders", {}).items()}
    fields = signed(fields, b"body", 479, key_of("shop"), SECRET)
    others, body = CHANGES[change]
    with own.connect() as client:
        head = encode_head(REQUEST, codes.SEND_MESSAGE_V2, 7, fields | others, len(body))
        client.send_bytes(head + body)
        assert client.receive_for(7).code == codes.NO_PERMISSION


def test_a_client_up_to_release_4_9_3_signs_without_its_query_flag(gateway: RemotingBroker) -> None:
    """Such a client adds ``_UNIQUE_KEY_QUERY`` after the signature; a later one signs it too."""
    fields = {"topic": "orders", "queueId": "0"}
    late = {"_UNIQUE_KEY_QUERY": "true"}
    for version, sent in (
        (399, signed(fields, b"", 399, key_of("ops"), SECRET) | late),
        (479, signed(fields | late, b"", 479, key_of("ops"), SECRET)),
    ):
        with gateway.connect() as client:
            header = {"code": codes.GET_MAX_OFFSET, "opaque": 1, "version": version, "extFields": sent}
            text = json.dumps(header).encode()
            client.send_bytes((len(text) + 4).to_bytes(4) + len(text).to_bytes(4) + text)
            assert client.receive_for(1).code == codes.SUCCESS


def test_a_security_token_is_part_of_what_is_signed(gateway: RemotingBroker) -> None:
    with SignedSocket(gateway.address, "ops") as ops:
        fields = {"topic": "orders", "queueId": 0, "SecurityToken": "a token"}
        assert ops.call(codes.GET_MAX_OFFSET, fields).code == codes.SUCCESS


def test_another_user_may_sign_on_the_same_connection(gateway: RemotingBroker) -> None:
    with SignedSocket(gateway.address, "shop") as client:
        assert client.produce("orders").code == codes.SUCCESS
        client.key = key_of("billing")
        refused = client.produce("orders")
        assert refused.code == codes.NO_PERMISSION
        assert "user billing has no permission: publish on topic orders" in refused.remark
        assert "flintmq user grant billing --publish orders" in refused.remark
        client.key = key_of("shop")
        assert client.produce("orders").code == codes.SUCCESS


def test_a_large_frame_is_refused_by_its_header_until_a_known_key_has_signed(gateway: RemotingBroker) -> None:
    """So a client without a key cannot make the broker hold its large bodies."""
    with gateway.connect() as client:
        head = encode_head(REQUEST, codes.SEND_MESSAGE_V2, 9, {ACCESS_KEY: "no-such-key"}, 500_000)
        client.send_bytes(head)  # nothing of the body
        assert client.receive_for(9).code == codes.NO_PERMISSION
        assert client.is_closed()
    with SignedSocket(gateway.address, "shop") as shop:
        assert shop.produce("orders", bytes(300_000)).code == codes.SUCCESS


class TestChanges:
    """Keys and users that are removed while clients use them."""

    @pytest.mark.parametrize("change", ["the key", "the user"])
    def test_a_client_loses_its_access_at_once(self, own: RemotingBroker, change: str) -> None:
        with (
            SignedSocket(own.address, "shop") as shop,
            Admin(own.running.address, user="ops", password=PASSWORD) as admin,
        ):
            assert shop.produce("orders").code == codes.SUCCESS
            if change == "the key":
                admin.remove_access_key("shop", key_of("shop"))
            else:
                admin.delete_user("shop")
            shop.wait_for_end()
        with SignedSocket(own.address, "shop") as again:
            assert again.produce("orders").code == codes.NO_PERMISSION

    def test_a_grant_takes_effect_on_open_connections(self, own: RemotingBroker) -> None:
        with (
            SignedSocket(own.address, "shop") as shop,
            Admin(own.running.address, user="ops", password=PASSWORD) as admin,
        ):
            assert shop.produce("bills").code == codes.NO_PERMISSION
            [orders] = next(each.grants for each in admin.users() if each.user == "shop")
            admin.change_user("shop", revoke=[orders])
            assert shop.produce("orders").code == codes.NO_PERMISSION
            admin.change_user("shop", grant=[orders])
            assert shop.produce("orders").code == codes.SUCCESS

    def test_a_key_made_over_the_network_signs_at_once_and_is_audited(self, own: RemotingBroker) -> None:
        with Admin(own.running.address, user="ops", password=PASSWORD) as admin:
            made = admin.add_access_key("shop")
            assert made.secret not in repr(made)
            keys = next(each.access_keys for each in admin.users() if each.user == "shop")
            assert [each.key for each in keys] == [key_of("shop"), made.key]
        with SignedSocket(own.address, "shop", made.secret) as shop:
            shop.key = made.key
            assert shop.produce("orders").code == codes.SUCCESS
        [entry] = [entry for entry in audit_of(own) if entry["action"] == "USER_ACCESS_KEYS"]
        assert entry["object"] == "user shop"
        assert [each["key"] for each in entry["after"]] == [key_of("shop"), made.key]
        assert made.secret not in (own.running.store.parent / "audit.log").read_text()
        assert made.secret in (own.running.store / USERS_FILE).read_text()

    def test_a_file_that_was_changed_is_read_within_seconds(self, own: RemotingBroker) -> None:
        set_users_with_keys(own.running.store, {"late": [ADMIN_GRANT]})

        def served() -> bool:
            with SignedSocket(own.address, "late") as late:
                return late.produce("orders").code == codes.SUCCESS

        soon(served)


def test_failed_attempts_make_the_next_ones_of_the_address_wait(own: RemotingBroker) -> None:
    """Beyond a number that may wait, the broker refuses further attempts at once."""
    with contextlib.ExitStack() as open_clients:
        clients = [open_clients.enter_context(SignedSocket(own.address, "shop", "a wrong secret")) for _ in range(40)]
        sent = [client.send(codes.SEND_MESSAGE_V2, send_fields("orders", {})) for client in clients]
        assert clients[0].receive_for(sent[0]).code == codes.NO_PERMISSION
        last = clients[-1].receive_for(sent[-1])
        assert last.code == codes.SYSTEM_BUSY
        assert "attempts to authenticate from 127.0.0.1 have failed" in last.remark


def test_one_users_wrong_secret_keeps_no_one_else_behind_the_address_waiting(own: RemotingBroker) -> None:
    """The other user is served while requests with the first one's key still wait for their turn."""
    with contextlib.ExitStack() as open_clients:
        clients = [open_clients.enter_context(SignedSocket(own.address, "shop", "a wrong secret")) for _ in range(5)]
        sent = [client.send(codes.SEND_MESSAGE_V2, send_fields("orders", {})) for client in clients]
        assert clients[0].receive_for(sent[0]).code == codes.NO_PERMISSION
        with SignedSocket(own.address, "ops") as ops:
            assert ops.produce("orders").code == codes.SUCCESS
        failures = own.running.log.count("failed to authenticate as")
        assert failures < len(clients)
        assert clients[-1].receive_for(sent[-1]).code == codes.NO_PERMISSION
