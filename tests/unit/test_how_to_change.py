"""``docs/how-to-change.md`` names code that exists in the files that it links to."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to-change.md"


def test_every_name_on_the_page_is_in_a_linked_file() -> None:
    page = PAGE.read_text(encoding="utf-8")
    linked = {(PAGE.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page)}
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(linked))
    prose = re.sub(r"\[[^\]]*\]\([^)]*\)", "", page)
    names = {
        name for name in re.findall(r"`@?([A-Za-z_][\w.]*)`", prose) if not name.endswith((".py", ".json", ".toml"))
    }
    assert len(names) > 30
    words = set(re.findall(r"\w+", code))
    assert {name for name in names if name.split(".")[-1] not in words} == set()
