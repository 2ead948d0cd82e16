"""rich's console, with this command line's exit codes."""

from __future__ import annotations

from rich.console import Console


class StrictConsole(Console):
    """A console that raises ``BrokenPipeError`` where nobody reads it any more, as every other write does."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled: raise it, instead of ending the process."""
        raise
