"""Whatever etcd answers or holds, the registry either reads it or raises one of its own errors."""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.replication.core.configuration import SetConfig
from flintmq.broker.replication.registry.etcd import EtcdRegistry, EtcdSettings
from flintmq.broker.replication.registry.interface import MalformedRegistry, RegistryError, decode_config, encode_config

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
CONFIG = SetConfig("id", 7, "a", frozenset("ab"), frozenset("ab"), 2)
FIELDS: dict[str, Any] = json.loads(encode_config(CONFIG, {"a": "a:1", "b": "b:1"}))
PAIR = {"mod_revision": "3", "lease": "4", "value": b64encode(json.dumps(FIELDS).encode()).decode()}


@given(st.sampled_from(sorted(FIELDS)), VALUES)
def test_a_configuration_is_read_or_malformed(field: str, value: object) -> None:
    with contextlib.suppress(MalformedRegistry):
        config, addresses = decode_config(json.dumps(FIELDS | {field: value}).encode())
        assert decode_config(encode_config(config, addresses)) == (config, addresses)


@given(st.binary())
def test_any_bytes_are_read_or_malformed(content: bytes) -> None:
    with contextlib.suppress(MalformedRegistry):
        decode_config(content)


@given(st.sampled_from(["header", "responses", "kvs", "mod_revision", "lease", "value"]), VALUES)
def test_any_response_to_a_read_is_read_or_a_typed_error(place: str, value: object) -> None:
    pairs: dict[str, Any] = {"kvs": value if place == "kvs" else [PAIR | {place: value}]}
    response: dict[str, Any] = {
        "header": {"revision": "9"},
        "responses": [{"response_range": pairs}, {"response_range": pairs}],
    }
    if place in response:
        response[place] = value
    registry = EtcdRegistry(EtcdSettings(("http://127.0.0.1:1",), "tests", "set"))
    with contextlib.suppress(RegistryError):
        registry._decoded(response)
