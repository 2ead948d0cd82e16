"""``flintmq config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ....protocol.errors import ConfigurationError
from ..command import Group, note, pass_settings
from ..output import TABLE, Column
from ..params import SettingType
from ..settings import Settings

if TYPE_CHECKING:
    from ...core.settings import Setting


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


COLUMNS = (
    Column("name", "SETTING"),
    Column("value", "VALUE", _show, fold=True),
    Column("at_start", "AT START", _show, fold=True),
    Column("hot", "CAN BE SET", lambda hot: "yes" if hot else ""),
)
UNCHANGED_COLUMNS = tuple(column for column in COLUMNS if column.name != "at_start")
"""If every value is as it was at the start."""
DATA_COLUMNS = (*COLUMNS, Column("rule", "MUST BE"))
CHANGED_COLUMNS = (
    Column("name", "SETTING"),
    Column("before", "BEFORE", _show, fold=True),
    Column("after", "NOW", _show, fold=True),
)


@click.group(cls=Group)
def config() -> None:
    """The broker's settings: list, show, change while it runs."""


def _row(setting: Setting) -> dict[str, Any]:
    return {name: getattr(setting, name) for name in ("name", "value", "at_start", "hot", "rule")}


@config.command("list")
@pass_settings
@click.option("--hot", is_flag=True, help="Only those that can be set while the broker runs.")
@click.option("--changed", is_flag=True, help="Only those that were set since the start.")
def list_settings(settings: Settings, hot: bool, changed: bool) -> None:
    """List the settings. Where the broker finds its users and keys is not shown."""
    with settings.admin() as admin:
        found = admin.settings()
    chosen = [each for each in found if (each.hot or not hot) and (each.value != each.at_start or not changed)]
    columns = COLUMNS if any(each.value != each.at_start for each in chosen) else UNCHANGED_COLUMNS
    if settings.output.mode != TABLE:
        columns = DATA_COLUMNS
    settings.output.rows(columns, map(_row, chosen), empty="no setting was changed since the start")


@config.command("get")
@pass_settings
@click.argument("name", metavar="SECTION.NAME", type=SettingType())
def get(settings: Settings, name: str) -> None:
    """Show one setting."""
    with settings.admin() as admin:
        found = {setting.name: setting for setting in admin.settings()}
    if name not in found:
        raise ConfigurationError(f"there is no setting {name} that is shown; flintmq config list has them all")
    settings.output.record(DATA_COLUMNS, _row(found[name]))


@config.command("set")
@pass_settings
@click.argument("assignments", metavar="SECTION.NAME=VALUE...", type=SettingType(to_set=True), nargs=-1, required=True)
def set_settings(settings: Settings, assignments: tuple[str, ...]) -> None:
    """Change settings at once, all that are given or none. They last until the broker is started again: to keep them,
    put them into its broker.toml."""
    changes: dict[str, int | str | bool] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or "." not in name:
            raise click.UsageError(
                f"{assignment!r} is not SECTION.NAME=VALUE, e.g. retention.file_reserved_hours=24",
                click.get_current_context(),
            )
        changes[name.strip()] = value
    with settings.admin() as admin:
        changed = admin.change_settings(changes)
    rows = [{"name": each.name, "before": each.before, "after": each.after} for each in changed]
    settings.output.rows(CHANGED_COLUMNS, rows)
    note(
        settings,
        "until the broker is started again; to keep it, put it into the file that `flintmq-broker serve --config` "
        "takes, such as the broker.toml that `flintmq-broker conf DIR` writes",
    )
