"""Settings of the broker: the list, and the form that changes one while the broker runs."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from ....protocol.auth.permissions import ADMIN
from ...core.admin.settings import Setting, Value
from ..failures import Refused
from ..visit import Visit


async def setting_list(visit: Visit) -> Response:
    """Return all settings, or only those whose name contains a text, that can be changed, or that were changed."""
    wanted, hot, changed = visit.text("q"), visit.text("hot") == "1", visit.text("changed") == "1"
    known = await visit.admin.settings()
    rows = [
        each
        for each in known
        if wanted.lower() in each.name.lower()
        and (each.hot or not hot)
        and (each.value != each.at_start or not changed)
    ]
    return await visit.page(
        "settings.html",
        rows=rows,
        total=len(known),
        changes=sum(1 for each in known if each.value != each.at_start),
        wanted=wanted,
        hot=hot,
        changed=changed,
        show=show_value,
        may_change=visit.may(ADMIN),
    )


async def setting(visit: Visit) -> Response:
    """Return one setting, with the form that changes it."""
    found = await _find(visit)
    return await visit.page("setting.html", setting=found, show=show_value, may_change=visit.may(ADMIN))


async def change(visit: Visit) -> Response:
    """Change one setting, if it still has the value that the person saw."""
    visit.check_writable()
    form = await visit.form()
    found = await _find(visit)
    if form.get("before") != show_value(found.value):
        raise Refused(
            409,
            f"{found.name} has changed in the meantime: it is {show_value(found.value)!r} now; nothing was changed, "
            "open its form again",
        )
    changed = await visit.admin.change_settings({found.name: form.get("value", "").strip()})
    texts = [f"{each.name} is {show_value(each.after)}, it was {show_value(each.before)}" for each in changed]
    return visit.done(
        f"{'; '.join(texts) or found.name + ' had that value already'} (until the broker restarts)",
        f"/settings#s-{quote(found.name)}",
    )


async def _find(visit: Visit) -> Setting:
    name = visit.path("name")
    found = next((each for each in await visit.admin.settings() if each.name == name), None)
    if found is None:
        raise Refused(404, f"the broker has no setting {name}")
    return found


def show_value(value: Value) -> str:
    """Return a value as in ``broker.toml``, without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)
