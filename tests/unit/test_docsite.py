"""The documentation site: its tree, its generated pages, and the conversion of GitHub's Markdown."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import flintmq.client
from flintmq.broker.config import FIELDS
from flintmq.broker.metrics.catalog import METRICS
from flintmq.client.cli.main import COMMANDS
from flintmq.protocol.errors import ERRORS_BY_CODE
from flintmq.scripts.docsite.build import faults
from flintmq.scripts.docsite.markdown import Converter
from flintmq.scripts.docsite.pages import ROOT, sections
from flintmq.scripts.docsite.reference_pages import (
    FUNCTIONS,
    asyncio_page,
    broker_command_page,
    client_command_page,
    client_page,
    data_page,
    error_page,
    metrics_page,
    settings_page,
)
from tests.unit.test_links import tracked_markdown

PAGES = [page for pages in sections().values() for page in pages]


def converted(text: str, source_url: str = "") -> str:
    """Return a text of ``client/README.md`` as that of the page ``how-to/client.md``."""
    places = {"client/README.md": "how-to/client.md", "docs/concepts.md": "start/concepts.md"}
    return Converter(ROOT, places, source_url).converted(text, "client/README.md", "how-to/client.md")


def test_every_document_for_readers_is_one_page() -> None:
    sources = [page.source for page in PAGES if isinstance(page.source, str)]
    tracked = tracked_markdown()
    assert {name for name in tracked if name.startswith(("docs/", "broker/", "client/", "protocol/"))} <= set(sources)
    assert set(sources) <= set(tracked)
    assert len({page.place for page in PAGES}) == len(PAGES)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("[a](../docs/concepts.md#topics)", "[a](../start/concepts.md#topics)"),
        ("[two\nlines](../docs/concepts.md)", "[two\nlines](../start/concepts.md)"),
        ("[`code`](message.py) stays", "`code` stays"),
        ("`[no](message.py)`", "`[no](message.py)`"),
        ("![p](../docs/images/group.svg)", "![p](../images/group.svg)"),
        ("[here](#names), [there](https://msgpack.org)", "[here](#names), [there](https://msgpack.org)"),
        ("```text\n[no](message.py)\n```", "```text\n[no](message.py)\n```"),
        ("text\n- item", "text\n\n- item"),
        ("1. one\n   more\n\n   ```text\n   x\n   ```", "1. one\n    more\n\n    ```text\n    x\n    ```"),
        ("| `a\\|b` | c |", "| `a|b` | c |"),
    ],
)
def test_markdown_is_converted(given: str, wanted: str) -> None:
    assert converted(given) == wanted


def test_links_to_code_lead_to_the_source_if_its_address_is_given() -> None:
    assert converted("[m](message.py)", "https://host/tree/") == "[m](https://host/tree/client/message.py)"


def test_the_generated_pages_have_every_object() -> None:
    assert set(re.findall(r"^\| `(\w+\.\w+)` \|", settings_page(), re.MULTILINE)) == set(FIELDS)
    assert set(re.findall(r"^\| `(\w+)` \|", metrics_page(), re.MULTILINE)) == {metric.name for metric in METRICS}
    assert {cls.__name__ for cls in ERRORS_BY_CODE.values()} <= set(re.findall(r"`(\w+)`", error_page()))
    commands = re.findall(r"^### `flintmq (\w+)`$", client_command_page(), re.MULTILINE)
    assert sorted(commands) == sorted(COMMANDS)
    assert "### `flintmq-broker serve`" in broker_command_page()


def test_a_method_that_a_function_made_has_its_signature_and_text() -> None:
    page = client_page()
    assert "#### `Admin.create_topic`" in page
    assert re.search(r"create_topic\(\n    topic: str,\n    queues: int = 4,\n    \*,\n", page)
    assert "async def send(" in asyncio_page()
    assert "\ncommitted(group: str, topic: str, *, timeout: float | None = None) -> dict[int, int]\n" in page
    for unreadable in ("object at 0x", "ForwardRef", ": '", "-> '"):
        assert unreadable not in page + asyncio_page()
    client: Any = flintmq.client
    exported = [getattr(client, name) for name in client.__all__]
    values = [each for each in exported if isinstance(each, type) and not issubclass(each, Exception)]
    for each in values:
        assert f"### `{each.__name__}`" in page


def test_the_functions_for_data_frames_are_those_that_programs_import() -> None:
    for module, (_, names) in FUNCTIONS.items():
        assert set(names) <= set(importlib.import_module(module).__all__)
        for name in names:
            assert f"### `{name}`\n\n```python\n{name}(" in data_page()


def test_a_command_with_options_lists_them() -> None:
    page = client_command_page()
    section = page.partition("### `flintmq query`")[2].partition("### `flintmq copy`")[0]
    assert "#### `flintmq query key`" in section
    assert "| `--since TIME` |" in section
    assert "\n    " not in broker_command_page().partition("`flintmq-broker backup`")[2].partition("```")[0]


def test_faults_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text('<h2 id="x">x</h2>')
    links = '<a href="a/#x"></a><a href="a/#y"></a><a href="b/"></a><script src="https://cdn.example/x.js"></script>'
    (tmp_path / "index.html").write_text(links)
    assert list(faults(tmp_path)) == [
        "index.html: loads https://cdn.example/x.js",
        "index.html: a/#y leads to no heading",
        "index.html: b/ leads to no page",
    ]
