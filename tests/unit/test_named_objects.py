"""Commands, options, settings and metrics that the documents name exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from flintmq.broker.app.daemon import main as broker_program
from flintmq.broker.config import FIELDS
from flintmq.broker.metrics.catalog import METRICS
from flintmq.client.cli.command import ALIASES, SUBCOMMAND_ALIASES, common_options
from flintmq.client.cli.main import root
from tests.unit.test_links import CODE, FENCED

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("client/**/*.md"), *ROOT.glob("broker/**/*.md")]
)
SECTIONS = {name.partition(".")[0] for name in FIELDS}
FILES = (".json", ".md", ".py", ".toml")
OTHERS = {"retention.ms", "retention.bytes", "flush.messages", "delivery.lost", "server.address", "server.port"}
"""Names with the shape of a setting: settings of Kafka, an attribute of a ``Delivery``, attributes of spans."""
BOTH = ("-h", "--help", "--version")


def code_of(document: Path) -> Iterator[str]:
    """Yield each inline code of a document on one line."""
    for found in CODE.finditer(FENCED.sub("", document.read_text(encoding="utf-8"))):
        yield " ".join(found[0].strip("`").split())


def command_lines(document: Path) -> Iterator[str]:
    """Yield each command of FlintMQ in the blocks of a document."""
    text = document.read_text(encoding="utf-8")
    blocks = [found[0] for found in FENCED.finditer(text)] + re.findall(r"^ {4,}.*$", text, re.MULTILINE)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        for part in re.split(r" \| ", line.partition("  #")[0].partition(" > ")[0]):
            if re.match(r"flintmq(-broker)? [a-z-]", part.strip()):
                yield part.strip()


def fault(line: str) -> str | None:
    """Return what does not exist of a command line, or None."""
    program, *words = shlex.split(line.replace("…", "").replace("\\|", "|"))
    command: click.Command = broker_program if program == "flintmq-broker" else root
    known = {option for param in common_options() for option in param.opts} if command is root else set()
    ctx = click.Context(command, info_name=program)
    if command is root and words and words[0] in ALIASES:
        words = [*ALIASES[words[0]].split(), *words[1:]]
    while isinstance(command, click.Group) and words and words[0][0] not in "-[" and not words[0].isupper():
        names = (words[0], *SUBCOMMAND_ALIASES.get(words[0], ()))
        below = next((each for name in names if (each := command.get_command(ctx, name)) is not None), None)
        if below is None:
            return f"{command.name} has no {words[0]}"
        command, words = below, words[1:]
    meant = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    known |= {option for each in meant for param in each.params for option in (*param.opts, *param.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    unknown = sorted(given - known - set(BOTH))
    return f"{command.name} has no {', '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: str(each.relative_to(ROOT)))
def test_what_a_document_names_exists(document: Path) -> None:
    faults = [fault(line) for line in command_lines(document)]
    for code in code_of(document):
        if re.match(r"flintmq(-broker)? [a-z-]", code):
            faults.append(fault(code))
        elif (name := re.match(r"(\w+)\.\w+", code)) and name[1] in SECTIONS and not name[0].endswith(FILES):
            prefix = name[0] if "…" in code else ""
            is_known = name[0] in {*FIELDS, *OTHERS} or (prefix and any(each.startswith(prefix) for each in FIELDS))
            faults.append(None if is_known else f"there is no setting {name[0]}")
    assert [each for each in faults if each is not None] == []


@pytest.mark.parametrize("document", sorted((ROOT / "docs" / "runbook").glob("*.md")), ids=lambda each: each.stem)
def test_the_metrics_of_the_runbook_exist(document: Path) -> None:
    names = {metric.name for metric in METRICS}
    found = re.findall(r"\b(?:flintmq|process)_[a-z_]+", " ".join(code_of(document)))
    assert {name.removesuffix("_bucket") for name in found} <= names


def test_what_does_not_exist_is_found() -> None:
    assert fault("flintmq dlq show billing --all") is None
    assert fault("flintmq sub orders") is None
    assert fault("flintmq orders") == "root has no orders"
    assert fault("flintmq dlq mend billing") == "dlq has no mend"
    assert fault("flintmq-broker verify STORE --fix") == "verify has no --fix"
