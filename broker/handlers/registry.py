"""The handlers of all commands, which check what the declarations of the commands say: rights, and which member of a
replica set may answer.

The handler of a command is the function with its name in lower case, in a module of this package. It names the parts
of the broker that it uses as parameters after the request: ``services_of`` finds them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from ...protocol import commands
from ...protocol.auth import rules
from ...protocol.commands import ServedBy
from . import archive, broker_admin, groups, offsets, pop, produce, pull, queries, topics, transactions, users

if TYPE_CHECKING:
    from ...protocol.auth.rules import Rule
    from ...protocol.commands import Command
    from ..requests.request import Request

Handler: TypeAlias = Callable[..., "Coroutine[Any, Any, None] | None"]
"""Gets a ``Request`` and the parts of the broker that it names. One that may wait is a coroutine function."""
Services: TypeAlias = "Callable[[Request], tuple[Any, ...]]"
"""Returns the parts of the broker that a handler gets after the request."""
Served: TypeAlias = "tuple[Handler, Services]"
"""A handler, and the parts that it gets."""

_OF_REQUEST = frozenset({"broker", "gateway"})
"""Parameters that are looked up on the request itself: the whole broker, which handlers of messages and reports on all
of it take, and the gateway for RocketMQ's clients."""


def services_of(handler: Handler) -> Services:
    """Return a function that finds the attributes of ``Broker`` that ``handler`` names.

    Each call looks them up again, because some are replaced while the broker runs: settings, the server's callbacks.
    """
    names = list(inspect.signature(handler).parameters)[1:]
    paths = [name if name in _OF_REQUEST else f"broker.{name}" for name in names]
    if not paths:
        return lambda request: ()
    found = attrgetter(*paths)
    return found if len(paths) > 1 else lambda request: (found(request),)


def guarded(handler: Handler, rule: Rule) -> Handler:
    """Return ``handler`` for authenticated connections: it is called only if the user has what ``rule`` needs."""
    if rule is rules.anybody:
        return handler

    def check_and_handle(request: Request, *services: Any) -> Coroutine[Any, Any, None] | None:
        access = request.peer.access
        assert access is not None, "for connections with a user"
        for need in rule(request.frame.fields):
            access.check(need)
        return handler(request, *services)

    return check_and_handle


def guarded_produce(produce: Handler) -> Handler:
    """Return ``guarded(produce, topic(PUBLISH))`` at the cost of one set lookup, because PRODUCE is frequent."""

    def check_and_produce(request: Request, *services: Any) -> None:
        name, access = request.frame.fields.get("topic"), request.peer.access
        assert access is not None, "for connections with a user"
        if type(name) is str and name not in access.publishes:
            access.check_publish(name)
        produce(request, *services)

    return check_and_produce


def of_members(handlers: dict[int, Served]) -> dict[int, Served]:
    """Return the handlers on a member of a replica set: it refuses what only the primary may answer."""
    return {
        code: (_on_member(handler, commands.COMMANDS[code].served_by), services)
        for code, (handler, services) in handlers.items()
    }


def _on_member(handler: Handler, served_by: ServedBy) -> Handler:
    if served_by is ServedBy.ALL:
        return handler
    reads = served_by is ServedBy.READERS

    def check_and_handle(request: Request, *services: Any) -> Coroutine[Any, Any, None] | None:
        member = request.broker.member
        assert member is not None, "for members of a replica set"
        may_follow = reads and request.peer.reads_any and not request.frame.fields.get("group")
        refusal = member.refusal(may_follow=may_follow)
        if refusal is not None:
            raise refusal
        return handler(request, *services)

    return check_and_handle


_SERVED = {code: command for code, command in commands.COMMANDS.items() if not command.from_broker}
_MODULES = (archive, broker_admin, groups, offsets, pop, produce, pull, queries, topics, transactions, users)


def _handler_of(command: Command) -> Handler:
    name = command.name.lower()
    [handler] = (vars(module)[name] for module in _MODULES if name in vars(module))
    found: Handler = handler
    return found


HANDLERS: dict[int, Served] = {
    code: (handler := _handler_of(command), services_of(handler)) for code, command in _SERVED.items()
}
"""Handlers after HELLO on a broker without authentication, by command code."""
HANDLERS_OF_USERS: dict[int, Served] = {
    code: (guarded(handler, _SERVED[code].rule), services) for code, (handler, services) in HANDLERS.items()
}
HANDLERS_OF_USERS[commands.PRODUCE.code] = guarded_produce(produce.produce), services_of(produce.produce)
"""Handlers of authenticated connections."""

HANDLERS_OF_MEMBERS = of_members(HANDLERS)
HANDLERS_OF_MEMBERS_USERS = of_members(HANDLERS_OF_USERS)
"""The same on a member of a replica set."""

HANDLERS_BEFORE_HELLO: dict[int, Served] = {commands.HELLO.code: HANDLERS[commands.HELLO.code]}
HANDLERS_BEFORE_AUTH: dict[int, Served] = {**HANDLERS_BEFORE_HELLO, commands.AUTH.code: HANDLERS[commands.AUTH.code]}
"""Handlers after HELLO and before authentication."""

ONE_WAY_CODES = frozenset(code for code, command in _SERVED.items() if command.one_way)
"""Commands that a one-way frame may carry."""
