"""Errors of reading messages as Arrow batches, in addition to the client's. Each says what to do."""

from __future__ import annotations

from ...protocol.errors import ConfigurationError, FlintError
from ..errors import InvalidArgument


class InvalidOption(InvalidArgument):
    """An option of a source, a sink or a read of a store is unknown, malformed or contradicts another; the message
    names it."""


class DataLoss(FlintError):
    """Messages that a read should return are no longer in the log: retention deleted them, a topic was deleted, or the
    log is damaged.

    The message names the range, and the argument or option that skips it and continues.
    """


class ArrowUnavailable(ConfigurationError):
    """PyArrow or NumPy is missing; the message says what to install."""
