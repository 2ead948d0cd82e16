"""Errors of the Spark sources and the sink, in addition to the client's. Each says what to do."""

from __future__ import annotations

from ...protocol.errors import ConfigurationError, FlintError
from ..arrow.errors import DataLoss, InvalidOption
from ..errors import InvalidArgument

__all__ = ["DataLoss", "IncompatibleSchema", "InvalidOption", "JavaNotFound", "SparkUnavailable", "WriteFailed"]


class IncompatibleSchema(InvalidArgument):
    """A schema asks for columns, or holds columns, that the source cannot fill or the sink cannot send."""


class WriteFailed(FlintError):
    """The broker did not acknowledge rows of a task; the message says which, and why.

    A row that failed with a timeout or a lost connection may still be stored: only the response is missing.
    """


class SparkUnavailable(ConfigurationError):
    """PySpark or one of its requirements is missing or too old; the message says what to install."""


class JavaNotFound(SparkUnavailable):
    """No Java of version 17 or newer was found; the message says which places were searched and what to install."""
