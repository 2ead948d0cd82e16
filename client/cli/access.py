"""User, password and TLS options of the command line.

A password is never an argument: other users of the machine could see it in the process list.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from ...protocol.errors import ConfigurationError
from ...protocol.text_files import first_line

if TYPE_CHECKING:
    from ..core.rpc.access import AccessOptions
    from .contexts import Options

PASSWORD_VARIABLE = "FLINTMQ_PASSWORD"  # noqa: S105 - a name
STDIN = "-"


class AccessChoice(Protocol):
    """The options of a command line that say who connects, and how; None: not given."""

    context: str | None
    user: str | None
    password_file: str | None
    tls: bool | None
    tls_ca: str | None
    tls_certificate: str | None
    tls_key: str | None
    may_ask: bool

    @property
    def context_options(self) -> Options:
        """The same of the context whose broker is used."""


def is_interactive() -> bool:
    """Return whether the command can prompt the user: standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def access_options(settings: AccessChoice) -> AccessOptions:
    """Return the access options for every client that a command opens. Prompts for the password on a terminal.

    Raises ``ConfigurationError`` if there is a user and no password.
    """
    options = tls_options(settings)
    said = settings.context_options
    user = _chosen(settings, "user", "FLINTMQ_USER")
    if user:
        file = settings.password_file
        if not file and user == said.get("user"):
            file = str(said.get("password_file") or "")
        options["user"] = user
        options["password"] = given_password(file) or _ask(user, settings.may_ask)
    elif settings.password_file:
        raise ConfigurationError("--password-file needs a user: pass --user or set FLINTMQ_USER")
    return options


def tls_options(settings: AccessChoice) -> AccessOptions:
    """Return the access options without user and password."""
    options: AccessOptions = {}
    said = settings.context_options
    ca = _chosen(settings, "tls_ca", "FLINTMQ_TLS_CA")
    certificate = _chosen(settings, "tls_certificate", "FLINTMQ_TLS_CERTIFICATE")
    key = _chosen(settings, "tls_key", "FLINTMQ_TLS_KEY")
    if ca:
        options["tls"] = ca
    elif settings.tls or certificate or _is_on("FLINTMQ_TLS") or said.get("tls"):
        options["tls"] = True
    if certificate:
        options["tls_certificate"] = certificate
    if key:
        options["tls_key"] = key
    return options


def _chosen(settings: AccessChoice, name: str, variable: str) -> str:
    """Return the option; else the value of the ``--context`` context, the variable, or the context in use."""
    said = str(settings.context_options.get(name) or "")
    given = getattr(settings, name)
    return given or (said if settings.context else "") or os.environ.get(variable, "") or said


def given_password(file: str | None) -> str:
    """Return the first line of ``file``, else the value of ``FLINTMQ_PASSWORD``, else an empty string.

    Raises ``ConfigurationError`` if the file cannot be read or its first line is empty.
    """
    if not file:
        return os.environ.get(PASSWORD_VARIABLE, "")
    try:
        password = first_line(sys.stdin.buffer.readline() if file == STDIN else Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the password from {file!r}: {error}") from None
    if not password:
        raise ConfigurationError(f"the first line of {file!r} is empty; expected the password")
    return password


def _ask(user: str, may_ask: bool) -> str:
    if not may_ask or not is_interactive():
        raise ConfigurationError(
            f"user {user!r} needs a password: set {PASSWORD_VARIABLE}, or pass --password-file FILE"
        )
    password: str = click.prompt(f"password for {user}", hide_input=True, err=True)
    return password


def _is_on(variable: str) -> bool:
    value = os.environ.get(variable, "").strip().lower()
    if value in ("", "0", "no", "off", "false"):
        return False
    if value in ("1", "yes", "on", "true"):
        return True
    raise ConfigurationError(f"{variable} must be 1 or 0, got {value!r}")
