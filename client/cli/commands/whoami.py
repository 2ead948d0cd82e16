"""The command ``flintmq whoami``."""

from __future__ import annotations

import click

from ....protocol.display import TABLE
from ..command import CliCommand, note, pass_settings
from ..output import TableColumn
from ..settings import BrokerChoice
from .user_grants import COLUMNS, DATA_COLUMNS, grant_row


@click.command("whoami", cls=CliCommand)
@pass_settings
def whoami(settings: BrokerChoice) -> None:
    """Show as which user the broker knows this client, and what that user may do."""
    with settings.admin() as admin:
        own = admin.whoami()
    table = settings.output.mode == TABLE
    rows = [{"user": own.user, **grant_row(each, table=table)} for each in own.grants]
    if not own.user:
        empty = "the broker has no users: every client may do everything"
    elif not rows:
        empty = f"user {own.user} has no permissions; ask an administrator for some"
    else:
        empty = ""
        note(settings, f"user {own.user} may:")
    settings.output.rows(COLUMNS if table else (TableColumn("user", "USER"), *DATA_COLUMNS), rows, empty=empty)
