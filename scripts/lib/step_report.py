"""Output of the demonstration scripts: one line per step, with its rate."""

from __future__ import annotations

from rich.console import Console

console = Console(highlight=False, soft_wrap=True)


def report(step: str, result: str, rate: str = "") -> None:
    """Print a finished step: ``report("pulled", "336,776 flights from all queues", rate_of(336_776, 0.6))``."""
    mark = "[green]✓[/] " if console.is_terminal else ""
    console.print(f"{mark}{step:<9} {result:<58} [cyan]{rate}[/]" if rate else f"{mark}{step:<9} {result}")


def rate_of(messages: int, seconds: float, total_bytes: int = 0) -> str:
    """Return messages per second, and megabytes per second if ``total_bytes`` is given."""
    rate = f"{messages / seconds:>11,.0f} msg/s"
    return f"{rate}  {total_bytes / seconds / 1e6:,.0f} MB/s" if total_bytes else rate


def show_failure(script: str, failure: BaseException) -> None:
    """Print on standard error why a script failed."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"{script}: {failure}", style="red", markup=False)
