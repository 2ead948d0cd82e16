"""The tree of the site."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import reference_pages as reference

ROOT = Path(__file__).resolve().parents[2]


class Page(NamedTuple):
    """A page: its title in the navigation, its place in the site, and a file of the repository or a function."""

    title: str
    place: str
    source: str | Callable[[], str]

    def text(self) -> str:
        return (ROOT / self.source).read_text(encoding="utf-8") if isinstance(self.source, str) else self.source()


START = [
    Page("FlintMQ", "index.md", "README.md"),
    Page("Install", "start/install.md", "docs/start/install.md"),
    Page("First steps", "start/first-steps.md", "docs/start/first-steps.md"),
    Page("Concepts", "start/concepts.md", "docs/concepts.md"),
    Page("Glossary", "start/glossary.md", "docs/glossary.md"),
]
HOW_TO = [
    Page("The client", "how-to/client.md", "client/README.md"),
    Page("Test with pytest", "how-to/testing.md", "docs/testing.md"),
    Page("Data frames", "how-to/arrow.md", "docs/arrow.md"),
    Page("Tracing", "how-to/tracing.md", "docs/tracing.md"),
    Page("Spark", "how-to/spark.md", "client/spark/README.md"),
    Page("The console", "how-to/console.md", "client/console/README.md"),
    Page("RocketMQ's clients", "how-to/rocketmq.md", "docs/rocketmq.md"),
    Page("Migration from RocketMQ", "how-to/migration.md", "docs/migration.md"),
    Page("Leaving FlintMQ", "how-to/leaving.md", "docs/leaving.md"),
    Page("Operations", "how-to/operations.md", "docs/operations.md"),
    Page("Backup and offline tools", "how-to/tools.md", "broker/tools/README.md"),
    Page("Size a disk", "how-to/disk-size.md", "docs/disk-size.md"),
    Page("Upgrade", "how-to/upgrade.md", "docs/upgrade.md"),
]
REFERENCE = [
    Page("flintmq.client", "reference/client.md", reference.client_page),
    Page("flintmq.client.aio", "reference/aio.md", reference.asyncio_page),
    Page("flintmq.testing", "reference/testing.md", reference.testing_page),
    Page("Data frames and Spark", "reference/data.md", reference.data_page),
    Page("Command line", "reference/cli.md", "client/cli/README.md"),
    Page("flintmq", "reference/flintmq.md", reference.client_command_page),
    Page("flintmq-broker", "reference/flintmq-broker.md", reference.broker_command_page),
    Page("Settings", "reference/settings.md", reference.settings_page),
    Page("Metrics", "reference/metrics.md", reference.metrics_page),
    Page("Errors and exit codes", "reference/errors.md", reference.error_page),
    Page("Protocol, permissions, limits", "reference/protocol.md", "protocol/README.md"),
    Page("File formats", "reference/store.md", "broker/store/README.md"),
    Page("Changes", "reference/changes.md", "CHANGELOG.md"),
]
EXPLANATION = [
    Page("How the broker works", "explanation/broker.md", "broker/README.md"),
    Page("Delivery", "explanation/delivery.md", "broker/delivery/README.md"),
    Page("The server", "explanation/server.md", "broker/net/README.md"),
    Page("Replica sets", "explanation/replication.md", "docs/replication.md"),
    Page("Reliability", "explanation/reliability.md", "docs/reliability.md"),
    Page("Performance", "explanation/performance.md", "docs/performance.md"),
    Page("Compared", "explanation/compared.md", "docs/compared.md"),
]
CONTRIBUTING = [
    Page("Contributing", "contributing/index.md", "CONTRIBUTING.md"),
    Page("Security", "contributing/security.md", "SECURITY.md"),
    Page("How to change FlintMQ", "contributing/how-to-change.md", "docs/how-to-change.md"),
    Page("The fault harness", "contributing/harness.md", "tests/fault/harness/README.md"),
    Page("Test data", "contributing/data.md", "tests/data/README.md"),
]
FLIGHTS = Page("The flights example", "tutorials/flights-example.md", "scripts/examples/flights/README.md")


def sections() -> dict[str, list[Page]]:
    """Return the pages by section, in order. A document of ``docs/`` that is not listed above is a how-to."""
    tree = {
        "Start": START,
        "Tutorials": [*_folder("tutorials", "orders-service", "reminders", "money", "flights"), FLIGHTS],
        "How-to": HOW_TO,
        "Runbook": _folder("runbook", "index"),
        "Reference": REFERENCE,
        "Explanation": EXPLANATION,
        "Contributing": CONTRIBUTING,
    }
    listed = {page.source for pages in tree.values() for page in pages}
    others = [_document(path, "how-to") for path in sorted((ROOT / "docs").glob("*.md"))]
    tree["How-to"] = HOW_TO + [page for page in others if page.source not in listed]
    return tree


def _folder(name: str, *first: str) -> list[Page]:
    """Return a page for each document of a folder of ``docs/``: the named ones first, then the others by name."""
    paths = {path.stem: path for path in sorted((ROOT / "docs" / name).glob("*.md"))}
    return [_document(paths[stem], name) for stem in dict.fromkeys([*first, *paths])]


def _document(path: Path, folder: str) -> Page:
    heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None, f"{path} has no heading"
    return Page(heading[1].replace("`", ""), f"{folder}/{path.name}", str(path.relative_to(ROOT)))
