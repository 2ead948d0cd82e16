"""The commands ``flintmq-broker conf`` and ``example``, for the files of the package ``flintmq.conf``."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import click

from ...protocol.escaping import escape
from .tool_command import tool_command

EXAMPLES = {
    "alerts": "alerts.yml",
    "compose": "compose.yaml",
    "grafana": "grafana-dashboard.json",
    "prometheus": "prometheus.yml",
    "settings": "broker.toml",
    "systemd": "flintmq-broker.service",
}
"""The file of each example."""


def read(name: str) -> bytes:
    """Return the content of a file of ``flintmq.conf``."""
    return (resources.files("flintmq.conf") / name).read_bytes()


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@tool_command
def conf(dest: Path) -> int:
    """Write the files for operators into the folder DEST.

    These are broker.toml with every setting and its default, a systemd unit, a scrape configuration and alert
    rules for Prometheus, a dashboard for Grafana, and a compose file. An existing file is not overwritten.
    """
    from ...protocol.errors import ConfigurationError

    files = {dest / name: read(name) for name in EXAMPLES.values()}
    for path in files:
        if os.path.lexists(path):  # also a link that leads nowhere
            raise ConfigurationError(f"{path} already exists: choose another folder, or move the file away")
    dest.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        with path.open("xb") as file:
            file.write(content)
        click.echo(escape(str(path)))
    return 0


@click.command()
@click.argument("name", metavar="NAME", type=click.Choice(list(EXAMPLES)))
@tool_command
def example(name: str) -> int:
    """Print the example NAME: alerts, compose, grafana, prometheus, settings or systemd.

    `conf` writes all of them into a folder.
    """
    click.echo(read(EXAMPLES[name]), nl=False)
    return 0
