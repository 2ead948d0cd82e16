"""Errors of the Spark sources and the sink, beside those of the client. Each says what to do."""

from __future__ import annotations

from ...protocol.errors import ConfigurationError, FlintError
from ..errors import InvalidArgument


class InvalidOption(InvalidArgument):
    """An option of a source or sink is unknown, malformed or contradicts another; the message names it."""


class IncompatibleSchema(InvalidArgument):
    """A schema asks for columns, or holds columns, that the source cannot fill or the sink cannot send."""


class DataLoss(FlintError):
    """Messages that a query should read are not in the log any more: retention took them, a topic was deleted, or the
    log is damaged.

    The message names the range. ``option("failOnDataLoss", "false")`` goes on behind it.
    """


class WriteFailed(FlintError):
    """Rows of a task were not acknowledged; the message says which, and why.

    One that failed with a timeout or a lost connection may be stored all the same: only its answer is missing.
    """


class SparkUnavailable(ConfigurationError):
    """PySpark, or something that it needs, is missing or too old; the message says what to install."""


class JavaNotFound(SparkUnavailable):
    """No Java of version 17 or newer was found; the message says where it was looked for and what to install."""
