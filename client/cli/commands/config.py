"""The command ``flintmq config``."""

from __future__ import annotations

from typing import Any

import click

from ....protocol.commands import ChangedSetting, Setting
from ....protocol.display import TABLE
from ....protocol.errors import ConfigurationError
from ..command import CliGroup, note, pass_settings
from ..failures import nearest
from ..output import columns_of
from ..params import SettingType
from ..settings import BrokerChoice

COLUMNS = columns_of(Setting, "name value at_start hot")
UNCHANGED_COLUMNS = columns_of(Setting, "name value hot")
"""Columns of the table if every value is as it was at the start."""
DATA_COLUMNS = columns_of(Setting, "name value at_start hot rule")
HIDDEN = "security."
"""Beginning of the names of settings that the broker shows to no client."""
CHANGED_COLUMNS = columns_of(ChangedSetting, "name before after")


@click.group(cls=CliGroup)
def config() -> None:
    """List, show and change the broker's settings."""


def _row(setting: Setting) -> dict[str, Any]:
    return {name: getattr(setting, name) for name in ("name", "value", "at_start", "hot", "rule")}


@config.command("list")
@pass_settings
@click.option("--hot", is_flag=True, help="Only settings that can be changed while the broker runs.")
@click.option("--changed", is_flag=True, help="Only settings that were changed since the start.")
def list_settings(settings: BrokerChoice, hot: bool, changed: bool) -> None:
    """List the settings, except those of [security], which the broker shows to no client."""
    with settings.admin() as admin:
        found = admin.settings()
    chosen = [each for each in found if (each.hot or not hot) and (each.value != each.at_start or not changed)]
    columns = COLUMNS if any(each.value != each.at_start for each in chosen) else UNCHANGED_COLUMNS
    if settings.output.mode != TABLE:
        columns = DATA_COLUMNS
    settings.output.rows(columns, chosen, empty="no setting has been changed since the start")


@config.command("get")
@pass_settings
@click.argument("name", metavar="SECTION.NAME", type=SettingType())
def get(settings: BrokerChoice, name: str) -> None:
    """Show one setting."""
    with settings.admin() as admin:
        found = {setting.name: setting for setting in admin.settings()}
    if name.startswith(HIDDEN):
        raise ConfigurationError(
            f"the broker shows no setting of [security] to clients, so not {name}: look at the file, the variables and "
            "the arguments with which it was started"
        )
    if name not in found:
        raise ConfigurationError(f"there is no setting {name}; flintmq config list shows all{nearest(name, found)}")
    settings.output.record(DATA_COLUMNS, _row(found[name]))


@config.command("set")
@pass_settings
@click.argument("assignments", metavar="SECTION.NAME=VALUE...", type=SettingType(to_set=True), nargs=-1, required=True)
def set_settings(settings: BrokerChoice, assignments: tuple[str, ...]) -> None:
    """Change settings of the running broker: all that are given, or none.

    The changes last until the broker is restarted. To make them permanent, put them into its broker.toml.
    """
    changes: dict[str, int | str | bool] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or "." not in name:
            raise click.UsageError(
                f"expected SECTION.NAME=VALUE, such as retention.file_reserved_hours=24; got {assignment!r}",
                click.get_current_context(),
            )
        changes[name.strip()] = value
    with settings.admin() as admin:
        changed = admin.change_settings(changes)
    settings.output.rows(CHANGED_COLUMNS, changed)
    note(
        settings,
        "this lasts until the broker is restarted; to make it permanent, put it into the file for `flintmq-broker "
        "serve --config`, such as the broker.toml that `flintmq-broker conf DIR` writes",
    )
