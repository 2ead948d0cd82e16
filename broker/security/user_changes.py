"""Changes of the users file for the audit log: users added and removed, passwords and grants changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .users import User


@dataclass(frozen=True, slots=True)
class UserChange:
    """One change. ``action``: USER_ADDED, USER_REMOVED, USER_PASSWORD or USER_GRANTS; ``before``, ``after``: grants."""

    action: str
    name: str
    before: tuple[dict[str, Any], ...] | None = None
    after: tuple[dict[str, Any], ...] | None = None


def user_changes(before: Iterable[User], after: Iterable[User]) -> Iterator[UserChange]:
    """Yield the changes from ``before`` to ``after``, by name. Of a password they say only that it changed."""
    old, new = ({user.name: user for user in users} for users in (before, after))
    for name in sorted(old.keys() | new.keys()):
        was, is_now = old.get(name), new.get(name)
        if was is None:
            assert is_now is not None
            yield UserChange("USER_ADDED", name, None, is_now.permissions)
        elif is_now is None:
            yield UserChange("USER_REMOVED", name, was.permissions, None)
        else:
            if was.verifier != is_now.verifier:
                yield UserChange("USER_PASSWORD", name)
            if was.permissions != is_now.permissions:
                yield UserChange("USER_GRANTS", name, was.permissions, is_now.permissions)
