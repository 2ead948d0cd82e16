"""The audit log: one bounded line of printable ASCII for each change, and where the broker writes it."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.security.audit import (
    ITEMS_MAX,
    LINE_CHARS_MAX,
    LOGGER,
    REFUSED_A_MINUTE_MAX,
    AuditLog,
    Author,
    encode,
)
from flintmq.protocol.errors import ConfigurationError

VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63) | st.booleans() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=50) | st.dictionaries(st.text(max_size=300), inner, max_size=50),
    max_leaves=60,
)


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    """Return an audit log that writes to ``tmp_path / "audit"``; its clock is in the year 2001."""
    found = AuditLog(str(tmp_path / "audit"), clock=lambda: 1_000_000_000.5)
    yield found
    found.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_time_user_action_object_and_result(audit: AuditLog, tmp_path: Path) -> None:
    audit.write(
        "UPDATE_AND_CREATE_TOPIC",
        "topic orders",
        author=Author("ann", "10.0.0.1:5", "flintmq"),
        before=None,
        after={"perm": 6},
    )
    audit.write(
        "DELETE_TOPIC_IN_BROKER",
        "topic orders",
        author=Author(address="127.0.0.1:7"),
        outcome="NO_PERMISSION",
        reason="no",
    )
    assert lines(tmp_path / "audit") == [
        {
            "time": "2001-09-09T01:46:40.500Z",
            "action": "UPDATE_AND_CREATE_TOPIC",
            "object": "topic orders",
            "user": "ann",
            "address": "10.0.0.1:5",
            "client": "flintmq",
            "after": {"perm": 6},
            "outcome": "done",
        },
        {
            "time": "2001-09-09T01:46:40.500Z",
            "action": "DELETE_TOPIC_IN_BROKER",
            "object": "topic orders",
            "address": "127.0.0.1:7",
            "outcome": "NO_PERMISSION",
            "reason": "no",
        },
    ]


def test_the_file_is_private_to_its_owner_and_is_created_again_after_a_move(audit: AuditLog, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit.write("a", "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(tmp_path / "audit.1")
    audit.write("c", "d")
    assert [line["action"] for line in lines(path)] == ["c"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_refused_by_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"log\.audit = .*nowhere"):
        AuditLog(str(tmp_path / "nowhere" / "audit"))


def test_the_audit_log_without_a_file_goes_to_the_brokers_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)  # a quiet broker keeps its audit
    AuditLog("").write("a", "topic b")
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert json.loads(record.message)["object"] == "topic b"


@given(st.text(max_size=5_000), VALUES, VALUES, st.text(max_size=40_000))
def test_no_content_makes_a_second_line_or_a_long_one_or_drives_a_terminal(
    name: str, before: Any, after: Any, reason: str
) -> None:
    line = encode({"action": "x", "object": name, "client": name, "before": before, "after": after, "reason": reason})
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= LINE_CHARS_MAX
    assert json.loads(line)["action"] == "x"


def test_a_line_of_many_entries_counts_the_omitted_ones() -> None:
    entry = json.loads(encode({"before": {str(queue): queue for queue in range(ITEMS_MAX + 5)}}))
    assert len(entry["before"]) == ITEMS_MAX + 1
    assert "5 more" in entry["before"].values()


def test_refusals_cannot_fill_a_disk_and_omitted_lines_are_counted(tmp_path: Path) -> None:
    now = [6_000.0]
    audit = AuditLog(str(tmp_path / "audit"), clock=lambda: now[0])
    for _ in range(REFUSED_A_MINUTE_MAX + 40):
        audit.write("a", "b", outcome="NO_PERMISSION")
    audit.write("changed", "b")
    now[0] += 60
    audit.write("a", "b", outcome="NO_PERMISSION")
    audit.close()
    found = lines(tmp_path / "audit")
    assert len(found) == REFUSED_A_MINUTE_MAX + 2
    assert found[-2]["action"] == "changed"
    assert found[-1]["left_out"] == 40
