"""A rich console that keeps to this command line's exit codes."""

from __future__ import annotations

from rich.console import Console


class StrictConsole(Console):
    """A console that raises ``BrokenPipeError`` when the reader of the output is gone, as every other write does."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled; rich would end the process."""
        raise
