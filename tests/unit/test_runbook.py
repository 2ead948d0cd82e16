"""Every alert has a page of the runbook, and every page of an alert has its rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs" / "runbook"
RULES = re.findall(
    r"- alert: (\w+)\n(.*?)(?=\n\n|\Z)", (ROOT / "conf" / "alerts.yml").read_text(encoding="utf-8"), re.DOTALL
)
ALERTS = [name for name, _ in RULES]
INDEX = (RUNBOOK / "index.md").read_text(encoding="utf-8")


def test_the_pages_of_alerts_are_those_of_the_rules() -> None:
    assert len(ALERTS) >= 5
    assert sorted(ALERTS) == sorted(path.stem for path in RUNBOOK.glob("FlintMQ*.md"))


@pytest.mark.parametrize(("name", "rule"), RULES, ids=ALERTS)
def test_a_rule_names_its_page_which_says_where_to_look_and_what_to_do(name: str, rule: str) -> None:
    (url,) = re.findall(r'^ +runbook_url: "(.*)"$', rule, re.MULTILINE)
    page = (ROOT / url).read_text(encoding="utf-8")
    assert re.findall(r"^#+ .*$", page, re.MULTILINE) == [f"# {name}", "## Look", "## Do"]
    (severity,) = re.findall(r"severity: (\w+)", rule)
    assert f"| {severity} | [{name}]({name}.md) |" in INDEX


def test_the_index_leads_to_every_page() -> None:
    assert {path.name for path in RUNBOOK.glob("*.md")} - {"index.md"} == set(
        re.findall(r"\]\((\w[\w-]*\.md)\)", INDEX)
    )
