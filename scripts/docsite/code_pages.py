"""Pages of the reference that are made from definitions in the code: settings, metrics, errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from flintmq.broker.app import daemon
from flintmq.broker.config import FIELDS, valid_values
from flintmq.broker.handlers.broker_admin import HOT_SETTINGS
from flintmq.broker.metrics.catalog import METRICS
from flintmq.broker.tools import commands, output
from flintmq.client import FlintError
from flintmq.client.cli import failures
from flintmq.protocol.errors import BrokerError

ROOT = Path(__file__).resolve().parents[2]


def table(heads: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return a Markdown table; ``heads``: its heads, divided by ``|``."""
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    return "\n".join(lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rows])


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    # Code may contain a bar; outside of code it would end the cell.
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in parts)


def prose(text: str | None) -> str:
    """Return a docstring or help text as Markdown: its code is between double backticks."""
    return (text or "").replace("``", "`").strip()


def settings_page() -> str:
    """Return every setting with its default, its valid values and its meaning, from ``conf/broker.toml``."""
    parts = [
        "# Settings",
        "Every setting of `flintmq-broker`. A later source overrides an earlier one: defaults, `--config FILE`, the "
        "environment (`FLINTMQ_SECTION__NAME`), `--set SECTION.NAME=VALUE`. A *hot* setting can be changed while the "
        "broker runs: `flintmq config set SECTION.NAME=VALUE`.",
    ]
    section, rows = "", list[tuple[object, ...]]()
    seen = set[str]()
    for line in (ROOT / "conf" / "broker.toml").read_text(encoding="utf-8").splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            if rows:
                parts += [f"## `[{section}]`", table("setting | default | valid values | meaning", rows)]
            section, rows = header[1], []
        elif setting := re.match(r"(\w+) = (.*?)\s+#\s+(\S.*)", line):
            name = f"{section}.{setting[1]}"
            seen.add(name)
            hot = "*hot* · " if name in HOT_SETTINGS else ""
            rows.append((f"`{name}`", f"`{setting[2]}`", _escaped(valid_values(name)), hot + _escaped(setting[3])))
    parts += [f"## `[{section}]`", table("setting | default | valid values | meaning", rows)]
    assert seen == set(FIELDS), "conf/broker.toml has every setting"
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def metrics_page() -> str:
    """Return every metric, from the catalog."""
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for metric in METRICS
    ]
    return "\n\n".join(
        [
            "# Metrics",
            "Every metric that `/metrics` shows. `conf/alerts.yml` has alerts for them, "
            "`conf/grafana-dashboard.json` a panel for each.",
            table("name | kind | labels | meaning", rows),
        ]
    )


def error_page() -> str:
    """Return the tree of errors, the results of the protocol with their classes, and the exit codes."""
    tree = "\n".join(f"{'    ' * depth}- `{cls.__name__}`: {_first(cls)}" for depth, cls in _descendants(FlintError))
    results = [
        (cls.code, f"`{cls.name}`", f"`{cls.__name__}`", "yes" if cls.retriable else "no", prose(cls.__doc__))
        for cls in sorted(BrokerError.__subclasses__(), key=lambda cls: cls.code)
    ]
    return "\n\n".join(
        [
            "# Errors and exit codes",
            "Every error that FlintMQ raises on purpose is a `flintmq.client.FlintError`. Its message says what "
            "happened, to which object, why, and what to do next.",
            "## Errors in Python",
            tree,
            "## Results of the broker",
            "The command line shows an error as `RESULT (code)`. *Retry helps*: the same request can succeed later; "
            "clients try such requests again by themselves until their timeout.",
            table("code | result | class | retry helps | meaning", results),
            "## Exit codes of `flintmq`",
            table("exit code | meaning", _exit_codes(Path(failures.__file__))),
            "## Exit codes of `flintmq-broker serve`",
            table("exit code | meaning", [(0, "Done."), *_exit_codes(Path(daemon.__file__))]),
            "## Exit codes of the other commands of `flintmq-broker`",
            table(
                "exit code | meaning",
                [(0, "Done."), *_exit_codes(Path(commands.__file__)), *_exit_codes(Path(output.__file__))],
            ),
        ]
    )


def _descendants(cls: type[Exception], depth: int = 0) -> Iterator[tuple[int, type[Exception]]]:
    yield depth, cls
    for child in sorted(cls.__subclasses__(), key=lambda each: each.__name__):
        if child.__module__.startswith("flintmq."):
            yield from _descendants(child, depth + 1)


def _first(cls: type[Exception]) -> str:
    return " ".join(prose(cls.__doc__).partition("\n\n")[0].split())


def _exit_codes(module: Path) -> Iterator[tuple[object, ...]]:
    """Yield the values and texts of the constants ``EXIT_…`` of a module."""
    text = module.read_text(encoding="utf-8")
    for _, value, meaning in re.findall(r'^EXIT_(\w+) = (\d+)(?:\n"""(.*?)""")?', text, re.MULTILINE | re.DOTALL):
        yield value, meaning or "Done."
