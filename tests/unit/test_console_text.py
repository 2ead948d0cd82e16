"""Text of bodies and JSON as the console shows it, and the files that it ships."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.client.console import bodies
from flintmq.client.console.bodies import indent_json
from flintmq.client.console.pages.broker import retention_steps
from flintmq.client.console.render import FOLDER, PART_LINES, line_parts
from flintmq.client.operator.condition import Condition
from flintmq.protocol.commands import Setting

CODE_OF_TEXT = r"hx-on|js:|javascript:|\bon\w+=|style=|\|\s*safe\b|hx-trigger=\"[^\"]*\["
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(JSON_VALUES) | st.dictionaries(st.text(), JSON_VALUES), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_indented_json_is_the_same_json(value: object, is_ascii: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    shown = indent_json(text, 1_000_000)
    assert shown is not None
    assert shown[1]
    assert json.loads(shown[0]) == value
    assert re.sub(r"[ \n]", "", shown[0]) == re.sub(r"[ \n\t]", "", text)


def test_digits_order_and_repeated_keys_stay() -> None:
    text = '{"b": 1.10, "a": 12345678901234567890123, "b": 1e5}'
    assert indent_json(text, 1000) == ('{\n  "b": 1.10,\n  "a": 12345678901234567890123,\n  "b": 1e5\n}', True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", '"x"', "[1,]", '{"a"}', '{"a":1,}', "[1 2]", '{"a":1}x', "[", '{"a":[1,2,3', "]", "[01]", "[+1]"),
        *("{1:2}", "[nul]", '["\n"]'),
    ],
)
def test_other_text_is_not_json(text: str) -> None:
    assert indent_json(text, 1000) is None


def test_deep_nesting_is_not_followed() -> None:
    assert indent_json("[" * 100_000, 1_000_000) is None


def test_a_long_json_body_is_cut() -> None:
    body = json.dumps([{"n": number} for number in range(100_000)]).encode()
    view = bodies.view_body(body)
    assert (view.name, view.is_whole) == ("json", False)
    assert view.text.startswith('[\n  {\n    "n": 0\n  },')
    assert len(view.text) < 4 * bodies.SHOWN_BYTES_MAX


def test_one_long_string_in_json_is_cut() -> None:
    view = bodies.view_body(json.dumps({"a": 1, "data": "x" * 500_000}).encode())
    assert (view.name, view.is_whole) == ("json", False)
    assert len(view.text) < 2 * bodies.SHOWN_BYTES_MAX


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"", "text"),
        (b"hello", "text"),
        ("grün".encode(), "text"),
        (b"[1, 2]", "json"),
        (b"[1, 2", "text"),
        (b"\x00\x01", "hex"),
        (b"\xff", "hex"),
        (b"\x81\xa1a\x01", "msgpack"),
        (b"\x81\xa1a", "hex"),
    ],
)
def test_the_content_decides_the_view(body: bytes, name: str) -> None:
    assert bodies.view_body(body).name == name


def test_a_cut_in_a_letter_leaves_text() -> None:
    body = "ü".encode() * 100_000
    for bytes_max in (999, 1000):
        assert bodies.view_body(body, bytes_max=bytes_max).name == "text"


@given(st.binary(max_size=300), st.sampled_from(["", *bodies.VIEWS]))
def test_no_body_brings_control_characters_to_the_page(body: bytes, wanted: str) -> None:
    for text in (bodies.view_body(body, wanted).text, bodies.preview(body, 0, is_whole=True)):
        assert all(letter.isprintable() or letter in "\n\t" for letter in text)


def test_published_files_are_unchanged() -> None:
    folder = FOLDER / "static" / "vendor"
    listed = tomllib.loads((folder / "vendor.toml").read_text())
    assert {path.name for path in folder.iterdir()} == {*listed, "vendor.toml", "htmx-LICENSE.txt"}
    for name, entry in listed.items():
        digest = base64.b64encode(hashlib.sha384((folder / name).read_bytes()).digest()).decode()
        assert entry["integrity"] == f"sha384-{digest}", name


def test_a_page_loads_little() -> None:
    def packed(*paths: Path) -> int:
        return sum(len(gzip.compress(path.read_bytes(), 9)) for path in paths)

    static = FOLDER / "static"
    scripts = re.findall(r"/static/([^\"? ]+\.js)", (FOLDER / "templates" / "base.html").read_text())
    assert len(scripts) == 3
    assert packed(*(static / name for name in scripts)) <= 20_000
    assert packed(static / "console.css") <= 8_000


def test_templates_use_nothing_that_makes_code_of_text() -> None:
    for path in (FOLDER / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(CODE_OF_TEXT, text), path.name


@given(st.lists(st.sampled_from(["", "x", "\r", "\u2028"]), max_size=3 * PART_LINES))
def test_the_parts_of_a_body_joined_are_the_body(lines: list[str]) -> None:
    text = "\n".join(lines)
    parts = line_parts(text)
    assert "".join(parts) == text
    assert all(part.count("\n") <= PART_LINES for part in parts)


@pytest.mark.parametrize(
    ("free", "rule"),
    [
        (50, "Now 50.0 GB is free and 50 % is used: files are deleted only at 04:00 and 16:00."),
        (22, "Now 22.0 GB is free and 78 % is used: files of that age are deleted at any hour."),
        (12, "Now 12.0 GB is free and 88 % is used: the oldest file is deleted next, whatever its age."),
        (
            5,
            "Now 5.00 GB is free and 95 % is used: the oldest file is deleted next, whatever its age, and messages are",
        ),
    ],
)
def test_retention_says_which_rule_applies_now(free: int, rule: str) -> None:
    values: dict[str, int | str] = {
        "file_reserved_hours": 72,
        "delete_when": "04;16",
        "headroom_bytes": 30 * 10**9,
        "disk_clean_percent": 75,
        "disk_force_percent": 85,
        "disk_refuse_percent": 90,
    }
    settings = [Setting(f"retention.{name}", value, value, True, "") for name, value in values.items()]
    disk = Condition({"disk_free_bytes": free * 10**9, "disk_total_bytes": 100 * 10**9})
    assert retention_steps(settings, disk)[-1].startswith(rule)
    assert retention_steps(settings, Condition({})) == []
