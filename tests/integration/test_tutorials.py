"""The first steps and the tutorials do what they say, typed as they are, against real brokers.

The tutorial on Celery has an environment and a test of its own (``tests/celery``), that on Spark a session
(``tests/spark``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.document_reader import Reader
from tests.integration.test_documents import DOCUMENTS, blocks

DOCS = Path(__file__).parents[2] / "docs"
ELSEWHERE = {"celery.md", "flights.md"}
TUTORIALS = [
    *sorted((DOCS / "start").glob("*.md")),
    *(path for path in sorted((DOCS / "tutorials").glob("*.md")) if path.name not in ELSEWHERE),
]


def test_every_document_with_a_program_has_a_test() -> None:
    read = {*TUTORIALS, *DOCUMENTS, *(DOCS / "tutorials" / name for name in ELSEWHERE)}
    assert {path for path in DOCS.rglob("*.md") if blocks(path, "python") + blocks(path, "sh")} <= read


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.parametrize("document", TUTORIALS, ids=lambda path: path.stem)
def test_a_reader_gets_what_the_tutorial_shows(reader: Reader, document: Path) -> None:
    reader.read(document)
