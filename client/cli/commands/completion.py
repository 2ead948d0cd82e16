"""The command ``flintmq completion``."""

from __future__ import annotations

import click

from ..command import command
from ..settings import BrokerChoice

LINES = {
    "bash": ('eval "$({variable}=bash_source {program})"', "~/.bashrc"),
    "zsh": ('eval "$({variable}=zsh_source {program})"', "~/.zshrc"),
    "fish": ("{variable}=fish_source {program} | source", "~/.config/fish/completions/{program}.fish"),
}
PROGRAMS = ("flintmq", "flintmq-broker")
"""Programs with completion; the second one exists only if the ``broker`` extra is installed."""


@command("completion")
@click.argument("shell", type=click.Choice(list(LINES)))
def completion(settings: BrokerChoice, shell: str) -> None:
    """Print the lines that switch on completion in SHELL.

    Completion covers commands, options, and the broker's topics, groups and settings. The second line is for
    flintmq-broker.
    """
    line, file = LINES[shell]
    for program in PROGRAMS:
        variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
        made = line.format(program=program, variable=variable)
        settings.output.write(f"# {program}: add this line to {file.format(program=program)}\n{made}\n")
