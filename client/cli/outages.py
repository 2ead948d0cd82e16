"""Notes on standard error about outages of the broker, for commands that follow a topic."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from ...protocol.display import escape
from .. import endpoint
from .command import note
from .settings import BrokerChoice

_TOLD = frozenset({endpoint.LOST, endpoint.WAITING, endpoint.BACK})


class _Notes(logging.Handler):
    """A log handler that prints the connection log's records about outages."""

    def __init__(self, settings: BrokerChoice) -> None:
        super().__init__(logging.INFO)
        self._settings = settings

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        if getattr(record, "event", None) in _TOLD:
            self._settings.output.flush()
            note(self._settings, escape(str(getattr(record, "said", record.getMessage()))))


@contextlib.contextmanager
def outages_told(settings: BrokerChoice) -> Iterator[None]:
    """Tell the user, within the context, when the connection is lost, when the client waits, and when it is back."""
    log, notes = endpoint.log, _Notes(settings)
    level = log.level
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(notes)
        log.setLevel(level)
