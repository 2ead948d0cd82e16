"""Settings: the layers and their order, valid values, and refusals that name the setting and its source."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flintmq.broker.addresses import is_loopback, parse_address
from flintmq.broker.config import FIELDS, FIXED, PACKAGED_FILE, Settings, load_settings, valid_values
from flintmq.broker.store.settings import StoreSettings
from flintmq.protocol.errors import ConfigurationError


def load(
    *assignments: str,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    return load_settings(config=config, environment=environment or {}, assignments=assignments, flags=flags or {})


def refusal(
    *assignments: str,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load(*assignments, config=config, environment=environment, flags=flags)
    message = str(refused.value)
    assert "\n" not in message, "one line"
    return message


# ---- defaults ----


def test_the_packaged_file_has_the_defaults_of_the_code() -> None:
    assert tomllib.loads(PACKAGED_FILE.read_text()) == Settings().model_dump()


def test_the_packaged_file_explains_every_setting() -> None:
    section = ""
    explained = set()
    for line in PACKAGED_FILE.read_text().splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            section = header[1]
        elif setting := re.match(r"(\w+) = .*#\s+\S", line):
            explained.add(f"{section}.{setting[1]}")
    assert explained == set(FIELDS)


def test_store_settings_have_the_defaults_of_the_store() -> None:
    assert Settings().store_settings() == StoreSettings()


def test_every_store_setting_can_be_set() -> None:
    names = {item.name for item in dataclasses.fields(StoreSettings)}
    given = {f"store.{name}" for name in names if f"store.{name}" in set(FIELDS)}
    flush = {f"flush.{name.removeprefix('flush_')}" for name in names}
    assert len(given) + len(flush & set(FIELDS)) == len(names)


# ---- layers ----


def test_a_later_layer_overrides_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[store]\nindex_slots = 600\nindex_entries = 600\n[flush]\ninterval_ms = 600\npolicy = 'async'\n")
    environment = {"FLINTMQ_STORE__INDEX_ENTRIES": "700", "FLINTMQ_FLUSH__INTERVAL_MS": "700"}
    settings = load("flush.interval_ms=800", config=file, environment=environment, flags={"flush.policy": "sync"})
    assert settings.store.index_slots == 600
    assert settings.store.index_entries == 700
    assert settings.flush.interval_ms == 800
    assert settings.flush.policy == "sync"
    assert settings.store.consumequeue_file_bytes == StoreSettings().consumequeue_file_bytes


def test_the_last_assignment_of_a_setting_wins() -> None:
    assert load("store.index_slots=600", "store.index_slots=700").store.index_slots == 700


def test_variables_without_two_underscores_are_not_settings() -> None:
    environment = {"FLINTMQ_STORE": "x", "FLINTMQ_KERNEL_CACHE": "/x", "FLINTMQ_BROKER": "a:1", "OTHER__NAME": "x"}
    assert load(environment=environment) == Settings()


# ---- values ----


@pytest.mark.parametrize(
    "assignment",
    [
        "store.commitlog_file_bytes=4194304",
        f"store.commitlog_file_bytes={2**31 - 4096}",
        "store.consumequeue_file_bytes=20",
        "store.consumequeue_file_bytes=2000",
        "store.index_slots=500",
        "store.index_entries=4",
        "store.index_entries=500",
        "retention.file_reserved_hours=876000",
        "retention.file_reserved_hours=0",
        "retention.delete_when=04;16",
        "topics.auto_create=false",
        "server.listen=[::1]:0",
        "server.advertise=broker.example:10911",
    ],
)
def test_a_valid_value_is_accepted(assignment: str) -> None:
    name, _, value = assignment.partition("=")
    section, _, key = name.partition(".")
    assert str(load(assignment).model_dump()[section][key]).lower() == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store.commitlog_file_bytes", "4190208"),
        ("store.commitlog_file_bytes", "4194305"),
        ("store.commitlog_file_bytes", str(2**31)),
        ("store.consumequeue_file_bytes", "0"),
        ("store.consumequeue_file_bytes", "30"),
        ("store.index_slots", "499"),
        ("store.index_slots", "many"),
        ("store.index_slots", "5e3"),
        ("store.index_slots", ""),
        ("store.index_entries", "3"),
        ("store.path", ""),
        ("retention.file_reserved_hours", "876001"),
        ("retention.file_reserved_hours", "-1"),
        ("retention.delete_when", "4"),
        ("retention.delete_when", "24"),
        ("flush.policy", "always"),
        ("server.listen", "localhost:65536"),
        ("server.listen", "localhost:"),
        ("server.listen", "[::1"),
        ("server.listen", "a b:1"),
        ("server.listen", "8080"),
        ("server.insecure", "perhaps"),
        ("topics.auto_create", "perhaps"),
        ("log.level", "loud"),
        ("limits.connections_max", "0"),
    ],
)
def test_an_invalid_value_is_refused_with_name_value_source_and_rule(name: str, value: str) -> None:
    message = refusal(f"{name}={value}")
    assert message == f"{name} = {value!r} (--set): must be {valid_values(name)}"


def test_a_refusal_names_the_environment_variable() -> None:
    message = refusal(environment={"FLINTMQ_STORE__INDEX_SLOTS": "1"})
    assert message.startswith("store.index_slots = '1' (the environment variable FLINTMQ_STORE__INDEX_SLOTS): must be")


def test_a_refusal_names_the_flag() -> None:
    assert "(--listen)" in refusal(flags={"server.listen": "nowhere:x"})
    assert "(--store)" in refusal(flags={"store.path": ""})
    assert "(--flush)" in refusal(flags={"flush.policy": "x"})


@pytest.mark.parametrize("value", ["true", "600.0", "[600]", '"six"'])
def test_a_refusal_names_the_file(tmp_path: Path, value: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f"[store]\nindex_slots = {value}\n")
    message = refusal(config=file)
    assert message.startswith("store.index_slots = ")
    assert f"({file})" in message


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("store.index_slot", "store.index_slots"),
        ("stoer.index_slots", "store.index_slots"),
        ("broker.index_slots", "store.index_slots"),
        ("topic.auto_crate", "topics.auto_create"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path, given: str, nearest: str) -> None:
    section, _, key = given.partition(".")
    file = tmp_path / "broker.toml"
    file.write_text(f"[{section}]\n{key} = 5\n")
    variable = f"FLINTMQ_{section}__{key}".upper()
    for message, source in (
        (refusal(f"{given}=5"), "--set"),
        (refusal(environment={variable: "5"}), variable),
        (refusal(config=file), str(file)),
    ):
        assert f"unknown setting {given} " in message
        assert source in message
        assert message.endswith(f"did you mean {nearest}?")


@pytest.mark.parametrize("name", FIXED)
def test_a_former_setting_is_refused_with_its_fixed_value(name: str) -> None:
    assert name not in FIELDS
    message = refusal(f"{name}=5")
    assert message == f"{name} (--set) is no longer a setting: the broker always uses {FIXED[name]}. Remove it"


def test_an_unknown_setting_without_a_similar_name_is_refused_with_the_sections() -> None:
    sections = (
        "archive, delivery, flush, limits, log, metrics, remoting, replication, retention, security, server, store, "
        "topics, transactions"
    )
    assert refusal("zzz.qqqqqq=1").endswith(f"the sections are {sections}")


@pytest.mark.parametrize("assignment", ["store.index_slots", "index_slots=5", "=", ""])
def test_a_malformed_assignment_is_refused(assignment: str) -> None:
    assert "SECTION.NAME=VALUE" in refusal(assignment)


def test_a_section_given_as_a_setting_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("store = 5\n")
    assert "store" in refusal(config=file)
    assert "is a section" in refusal(config=file)


def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[store\n")
    message = refusal(config=file)
    assert str(file) in message
    assert "line 1" in message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path / "none.toml") in refusal(config=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("assignments", "names"),
    [
        (
            ["store.index_slots=300000000", "store.index_entries=100000000"],
            ["store.index_entries", "store.index_slots"],
        ),
        (
            ["store.commitlog_file_bytes=4194304", "store.message_bytes_max=4194304"],
            ["store.message_bytes_max", "store.commitlog_file_bytes"],
        ),
        (["limits.frame_bytes_max=100000"], ["limits.frame_bytes_max", "store.message_bytes_max"]),
        (["limits.produce_frame_bytes_max=20000000"], ["limits.produce_frame_bytes_max", "limits.frame_bytes_max"]),
        (["limits.in_flight_bytes_max=5000"], ["limits.in_flight_bytes_max", "limits.frame_bytes_max"]),
    ],
)
def test_contradictory_settings_are_refused_with_both_names(assignments: Sequence[str], names: Sequence[str]) -> None:
    message = refusal(*assignments)
    assert "(--set)" in message
    for name in names:
        assert name in message


# ---- addresses ----


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:10911", ("127.0.0.1", 10911)),
        ("localhost", ("localhost", 10911)),
        ("[::1]:5", ("::1", 5)),
        ("::1", ("::1", 10911)),
        ("[fe80::1%eth0]:5", ("fe80::1%eth0", 5)),
        (":5", ("0.0.0.0", 5)),
        ("*:5", ("0.0.0.0", 5)),
        ("host:0", ("host", 0)),
    ],
)
def test_an_address_is_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host:", "host:-1", "host:99999", "[::1", "[::1]5", "a:b:c", "[host]:1", "a/b:1"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("no-such-host.invalid", False),
    ],
)
def test_loopback_addresses_are_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_topics_are_created_automatically_only_on_loopback() -> None:
    assert load("server.listen=127.0.0.1:0").auto_create_topics()
    assert not load("server.listen=0.0.0.0:0").auto_create_topics()
    assert load("server.listen=0.0.0.0:0", "topics.auto_create=true").auto_create_topics()
    assert not load("topics.auto_create=false").auto_create_topics()
