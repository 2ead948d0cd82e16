"""The table of requests in ``docs/rocketmq.md``, and limits in the server's README, are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from flintmq.broker.remoting.bodies import JSON_BYTES_MAX
from flintmq.broker.remoting.registry import ROWS, UNSUPPORTED
from flintmq.broker.requests.connected_client import ASKED_MAX, KEPT_BYTES_MAX
from flintmq.protocol.remoting import codes
from flintmq.protocol.remoting.fastjson import VALUES_MAX

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rocketmq.md"
_RESULTS = Path(codes.__file__).read_text(encoding="utf-8").partition("# ---- requests of clients ----")[2]
NAMES = {int(code): name for name, code in re.findall(r"^([A-Z_0-9]+) = (\d+)$", _RESULTS, re.M)}
"""Names of requests by code: the results before them have the same numbers."""


def expected_table() -> str:
    """Return the table that the page must have."""
    served = {code: (NAMES[code], "served") for code, _, _ in ROWS}
    refused = {code: (name, f"refused: {why}") for code, (name, why) in UNSUPPORTED.items()}
    rows = [f"| {code} | {name} | {state} |" for code, (name, state) in sorted({**refused, **served}.items())]
    return "\n".join(["| code | request | state |", "|---|---|---|", *rows])


def test_no_request_is_both_served_and_refused() -> None:
    assert not {code for code, _, _ in ROWS} & UNSUPPORTED.keys()


def test_the_page_lists_every_request_with_its_state() -> None:
    found = re.search(r"<!-- generated: requests -->\n\n(.*?)\n\n<!-- end -->", PAGE.read_text(encoding="utf-8"), re.S)
    assert found is not None
    assert found[1] == expected_table(), f"the table must be:\n{expected_table()}"


def test_the_table_of_memory_bounds_has_the_limits_of_bodies_subscriptions_and_checks() -> None:
    table = (ROOT / "broker" / "net" / "README.md").read_text(encoding="utf-8")
    shortest, longest = min(JSON_BYTES_MAX.values()) >> 10, max(JSON_BYTES_MAX.values()) >> 20
    assert f"| {shortest} KiB to {longest} MiB by request (`remoting/bodies.py`) and {VALUES_MAX:,} values;" in table
    assert f"those of one connection at most {KEPT_BYTES_MAX >> 20} MiB |" in table
    assert f"| each unanswered check of a producer, at most {ASKED_MAX:,} on a connection |" in table
