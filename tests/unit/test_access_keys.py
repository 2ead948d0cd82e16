"""Access keys in the users file: their values, their number, and that one signs for one user only."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flintmq.broker.security.audit import user_changes
from flintmq.protocol.auth.scram import (
    ITERATIONS_MIN,
    KEYS_MAX,
    AccessKey,
    make_access_key,
    make_verifier,
    parse_access_key,
)
from flintmq.protocol.auth.users import (
    Users,
    encode_users,
    parse_users,
    with_access_key,
    with_password,
    with_user,
    without_access_key,
    without_user,
)
from flintmq.protocol.checked_json import CHECKSUM_KEY
from flintmq.protocol.errors import ConfigurationError, UserNotExist

VERIFIER = make_verifier("correct horse", ITERATIONS_MIN)
KEY = AccessKey("RocketMQ", "12345678", 1)


@pytest.fixture
def users() -> Users:
    return with_user(with_user(Users(), "shop", VERIFIER), "billing", VERIFIER)


def rows_of(users: Users) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(encode_users(users))["users"]
    return rows


def test_a_key_is_in_the_file_as_it_is_and_leaves_the_verifier_alone(users: Users) -> None:
    changed = with_access_key(users, "shop", KEY)
    assert rows_of(changed)["shop"] == rows_of(users)["shop"] | {
        "access_keys": [{"key": "RocketMQ", "secret": "12345678", "created_ms": 1}]
    }
    assert rows_of(changed)["billing"] == rows_of(users)["billing"]
    assert parse_users(encode_users(changed).encode(), "").by_name["shop"].access_keys == (KEY,)
    assert with_password(changed, "shop", VERIFIER).by_name["shop"].access_keys == (KEY,)
    assert rows_of(without_access_key(changed, "shop", "RocketMQ")) == rows_of(users)


def test_random_keys_are_valid_and_differ() -> None:
    made = {make_access_key() for _ in range(50)}
    assert len({each.key for each in made}) == len({each.secret for each in made}) == 50
    assert {len(each.secret) for each in made} == {40}
    assert all(each.secret not in repr(each) for each in made)


@pytest.mark.parametrize(
    ("key", "secret", "words"),
    [
        ("short", "12345678", "7 to 64 of the characters"),
        ("k" * 65, "12345678", "7 to 64 of the characters"),
        ("a key with spaces", "12345678", "characters"),
        ("schlüssel", "12345678", "characters"),
        ("RocketMQ", "1234567", "8 to 128 printable"),
        ("RocketMQ", "1" * 129, "8 to 128 printable"),
        ("RocketMQ", "secret with spaces", "without spaces"),
        ("RocketMQ", "geheim-ü-123", "printable ASCII"),
    ],
)
def test_an_invalid_value_is_refused_without_its_secret(key: str, secret: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refusal:
        make_access_key(key, secret)
    assert secret not in str(refusal.value)


@pytest.mark.parametrize("row", [None, [], {}, {"key": 1}, {"key": "RocketMQ", "secret": 12345678}])
def test_a_row_of_another_shape_is_refused(row: Any) -> None:
    with pytest.raises(ConfigurationError, match="of shop"):
        parse_access_key(row, "the key of shop")


def test_one_key_signs_for_one_user_only(users: Users) -> None:
    changed = with_access_key(users, "shop", KEY)
    for name in ("shop", "billing"):
        with pytest.raises(ConfigurationError, match="RocketMQ is that of user 'shop'"):
            with_access_key(changed, name, KEY)
    table = json.loads(encode_users(changed))
    table["users"]["billing"]["access_keys"] = table["users"]["shop"]["access_keys"]
    del table[CHECKSUM_KEY]
    with pytest.raises(ConfigurationError, match="is that of 'shop' and of 'billing'"):
        parse_users(json.dumps(table).encode(), "users.json")


def test_the_number_of_a_users_keys_is_bounded(users: Users) -> None:
    for _ in range(KEYS_MAX):
        users = with_access_key(users, "shop", make_access_key())
    with pytest.raises(ConfigurationError, match=f"{KEYS_MAX} access keys, which is the maximum"):
        with_access_key(users, "shop", KEY)
    table = json.loads(encode_users(users))
    table["users"]["shop"]["access_keys"].append(KEY.as_json())
    del table[CHECKSUM_KEY]
    with pytest.raises(ConfigurationError, match=f"at most {KEYS_MAX}"):
        parse_users(json.dumps(table).encode(), "users.json")


def test_keys_of_others_cannot_be_removed_and_go_with_their_user(users: Users) -> None:
    changed = with_access_key(users, "shop", KEY)
    with pytest.raises(ConfigurationError, match="user 'billing' has no access key 'RocketMQ'"):
        without_access_key(changed, "billing", "RocketMQ")
    with pytest.raises(UserNotExist):
        with_access_key(changed, "nobody", make_access_key())
    with_access_key(without_user(changed, "shop"), "billing", KEY)


def test_the_audit_names_keys_and_no_secrets(users: Users) -> None:
    changed = with_access_key(users, "shop", KEY)
    [change] = user_changes(users.by_name.values(), changed.by_name.values())
    assert (change.action, change.name) == ("USER_ACCESS_KEYS", "shop")
    assert (change.before, change.after) == ((), ({"key": "RocketMQ", "created_ms": 1},))
