"""The tables between marks in documents are those of the code."""

from __future__ import annotations

import re

import pytest

from tests.generated_tables import DOCUMENTS, ROOT, with_tables


@pytest.mark.parametrize("document", DOCUMENTS)
def test_there_is_nothing_to_generate(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert text == with_tables(document), "python -m tests.generated_tables writes the tables"
    assert sorted(re.findall(r"<!-- generated: (.*?) -->", text)) == sorted(DOCUMENTS[document])


def test_every_mark_is_in_a_document_that_is_generated() -> None:
    marked = [path for folder in ("broker", "client", "docs", "protocol") for path in (ROOT / folder).rglob("*.md")]
    found = [str(path.relative_to(ROOT)) for path in marked if "<!-- generated: " in path.read_text(encoding="utf-8")]
    assert sorted(found) == sorted(DOCUMENTS)
