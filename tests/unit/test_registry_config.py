"""The configuration of a replica set as JSON, and the settings of a registry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flintmq.broker.replication.core.configuration import SetConfig
from flintmq.broker.replication.registry.etcd import EtcdRegistry, EtcdSettings
from flintmq.broker.replication.registry.interface import MalformedRegistry, Registry, decode_config, encode_config

CONFIG = SetConfig("id-1", 7, "a", frozenset("ab"), frozenset("abc"), 2)
ADDRESSES = {"a": "host-a:10911", "b": "host-b:10911", "c": "[::1]:10911"}
VALID: dict[str, Any] = json.loads(encode_config(CONFIG, ADDRESSES))


def test_a_configuration_survives_the_way_through_json() -> None:
    assert decode_config(encode_config(CONFIG, ADDRESSES | {"gone": "host:1"})) == (CONFIG, ADDRESSES)
    unled = SetConfig("id-1", 0, "", frozenset("ä"), frozenset("ä"), 1)
    assert decode_config(encode_config(unled, {"ä": "h:1"})) == (unled, {"ä": "h:1"})


def test_etcd_offers_every_verb_of_a_registry() -> None:
    registry: Registry = EtcdRegistry(EtcdSettings(("http://host",), "tests", "set"))  # mypy compares the types
    verbs = [name for name in vars(Registry) if not name.startswith("_")]
    assert len(verbs) == 5
    assert all(callable(getattr(registry, verb)) for verb in verbs)


def test_every_member_needs_an_address() -> None:
    with pytest.raises(ValueError, match="members b, c have no address"):
        encode_config(CONFIG, {"a": "host-a:10911"})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("format", [0, "1", True, None]),
        ("cluster_id", ["", 1, None]),
        ("epoch", [-1, "7", 7.0, True]),
        ("primary", ["", "d", ["a"], None]),
        ("in_sync", [[], ["d"], "ab", [["a"]], {"a": 1}]),
        ("members", [{}, ["a", "b"], {"a": ""}, {"a": 1, "b": "h:1"}]),
        ("min_in_sync", [0, 4, "2", True]),
        ("leader", ["a"]),
    ],
)
def test_a_field_with_a_wrong_value_is_malformed(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(MalformedRegistry, match="the configuration"):
            decode_config(json.dumps(VALID | {field: value}).encode())


def test_a_missing_field_is_named() -> None:
    with pytest.raises(MalformedRegistry, match="fields: epoch"):
        decode_config(json.dumps({key: value for key, value in VALID.items() if key != "epoch"}).encode())


def test_a_newer_format_asks_for_an_update() -> None:
    with pytest.raises(MalformedRegistry, match="format 2, this version reads format 1: update"):
        decode_config(b'{"format":2}')


@pytest.mark.parametrize("url", ["localhost:2379", "ftp://host", "http://", "http://host/path", "http://u:p@host"])
def test_an_endpoint_is_a_url_of_a_host(url: str) -> None:
    with pytest.raises(ValueError, match="expected an endpoint like"):
        EtcdRegistry(EtcdSettings((url,), "tests", "set"))


@pytest.mark.parametrize(("cluster", "replica_set"), [("", "set"), ("a/b", "set"), ("tests", "")])
def test_a_name_must_fit_into_the_prefix(cluster: str, replica_set: str) -> None:
    with pytest.raises(ValueError, match="must not be empty or contain"):
        EtcdRegistry(EtcdSettings(("http://host",), cluster, replica_set))


def test_a_password_stays_out_of_texts(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    settings = EtcdSettings(("http://host",), "tests", "set", user="me", password_file=str(tmp_path / "password"))
    login = settings.login()
    assert login is not None
    assert login.password == "hunter2"
    assert "hunter2" not in f"{settings} {login}"
    with pytest.raises(ValueError, match="password file"):
        EtcdRegistry(EtcdSettings(("http://host",), "tests", "set", user="me"))


def test_a_broker_without_a_replica_set_does_not_load_the_registry() -> None:
    program = (
        "import sys, flintmq.broker.app.daemon, flintmq.broker.app.lifecycle;"
        "print([name for name in sys.modules if name == 'h11' or '.replication.registry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
