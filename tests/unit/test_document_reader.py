"""The reader of tutorials notices an output that the page does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.document_reader import Reader


def read(folder: Path, text: str) -> None:
    """Read a tutorial."""
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    reader = Reader(folder)
    try:
        reader.read(page)
    finally:
        reader.close()


@pytest.mark.parametrize("shown", ["one\ntwo", "o…\n…", "…", "one\n…\ntwo"])
def test_an_output_that_the_page_has_is_accepted(tmp_path: Path, shown: str) -> None:
    read(tmp_path, f"Say it:\n\n```sh\nprintf 'one\\ntwo\\n'\n```\n\n```text\n{shown}\n```\n")


@pytest.mark.parametrize("shown", ["one", "two\none", "one\ntwo\nthree", "o…"])
def test_another_output_is_refused(tmp_path: Path, shown: str) -> None:
    with pytest.raises(AssertionError, match="it printed"):
        read(tmp_path, f"Say it:\n\n```sh\nprintf 'one\\ntwo\\n'\n```\n\n```text\n{shown}\n```\n")


def test_files_cells_and_exit_codes(tmp_path: Path) -> None:
    saved = "`given.py`:\n\n```python\nvalue = 3\n```\n\n"
    cells = (
        "One:\n\n```python\nfrom given import value\n```\n\nTwo:\n\n```python\nprint(value)\n```\n\n```text\n3\n```\n"
    )
    read(tmp_path, saved + cells)
    with pytest.raises(AssertionError):
        read(tmp_path, saved + cells.replace("\n3\n", "\n4\n"))
    with pytest.raises(AssertionError, match="false"):
        read(tmp_path, "Fail:\n\n```sh\nfalse\n```\n")
