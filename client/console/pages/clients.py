"""Clients: the broker's open connections, and closing one."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from ....protocol.auth.permissions import ADMIN
from ....protocol.commands import CONNECTIONS_MAX, ConnectionInfo
from ..failures import Refused
from ..visit import Visit, whole_number

ROWS_MAX = 200
REQUESTS_MAX = 2
"""Maximum number of requests of a page; a search examines at most this many times ``CONNECTIONS_MAX`` connections."""


@dataclass(frozen=True, slots=True)
class ConnectionPage:
    """Connections by id. ``examined``: number of those that were looked at; ``next_after``: the id after which the next
    page begins, or None on the last one."""

    rows: list[ConnectionInfo]
    examined: int
    next_after: int | None


async def client_list(visit: Visit) -> Response:
    """Return the connections whose address, user or client name contains a text."""
    wanted = visit.text("q")
    found = await _connections(visit, wanted.lower(), visit.number("after", 0, 0, 2**63 - 1))
    return await visit.page(
        "clients.html", found=found, wanted=wanted, after=visit.text("after"), may_close=visit.may(ADMIN)
    )


# ---- closing one


async def connection(visit: Visit) -> Response:
    """Return one connection, with the form that closes it."""
    number = int(visit.path("connection"))
    found = await visit.admin.connections(max(0, number - 1), max_count=1)
    if not found or found[0].id != number:
        raise Refused(404, f"connection {number} is not open any more")
    return await visit.page("connection.html", row=found[0], may_close=visit.may(ADMIN))


async def close(visit: Visit) -> Response:
    """Close the connection that the person saw."""
    visit.check_writable()
    number, form = int(visit.path("connection")), await visit.form()
    # Numbers begin again when the broker restarts: the time tells which connection the person saw.
    opened_ms = whole_number("opened", form.get("opened", ""), -1, -1, 2**63 - 1)
    await visit.admin.close_connection(number, opened_ms)
    return visit.done(f"connection {number} is closed; its client may connect again", "/clients")


async def _connections(visit: Visit, wanted: str, after: int) -> ConnectionPage:
    # Without a search, one row more than a page shows tells whether there is another page.
    size = CONNECTIONS_MAX if wanted else ROWS_MAX + 1
    rows: list[ConnectionInfo] = []
    examined, last = 0, after
    for _ in range(REQUESTS_MAX):
        page = await visit.admin.connections(last, max_count=size)
        for each in page:
            if not _matches(each, wanted):
                continue
            if len(rows) == ROWS_MAX:
                return ConnectionPage(rows, examined + page.index(each), rows[-1].id)
            rows.append(each)
        examined += len(page)
        if len(page) < size:
            return ConnectionPage(rows, examined, None)
        last = page[-1].id
    return ConnectionPage(rows, examined, last)


def _matches(each: ConnectionInfo, wanted: str) -> bool:
    return not wanted or wanted in f"{each.address} {each.user} {each.client}".lower()
