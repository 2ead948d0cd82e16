"""``flintmq completion``."""

from __future__ import annotations

import click

from ..command import command
from ..settings import Settings

LINES = {
    "bash": ('eval "$(_FLINTMQ_COMPLETE=bash_source flintmq)"', "~/.bashrc"),
    "zsh": ('eval "$(_FLINTMQ_COMPLETE=zsh_source flintmq)"', "~/.zshrc"),
    "fish": ("_FLINTMQ_COMPLETE=fish_source flintmq | source", "~/.config/fish/completions/flintmq.fish"),
}


@command("completion")
@click.argument("shell", type=click.Choice(list(LINES)))
def completion(settings: Settings, shell: str) -> None:
    """Print the line that switches on completion in SHELL: commands, options, and the broker's topics and groups."""
    line, file = LINES[shell]
    settings.output.write(f"# flintmq: add this line to {file}\n{line}\n")
