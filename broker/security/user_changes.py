"""Changes of the users file for the audit log: users added and removed, passwords and grants changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .users import User


@dataclass(frozen=True, slots=True)
class UserChange:
    """One change. ``action``: USER_ADDED, USER_REMOVED, USER_PASSWORD, USER_GRANTS or USER_ACCESS_KEYS.

    ``before``, ``after``: grants, or the names of access keys.
    """

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
            if was.access_keys != is_now.access_keys:
                yield UserChange("USER_ACCESS_KEYS", name, _key_names(was), _key_names(is_now))


def _key_names(user: User) -> tuple[dict[str, Any], ...]:
    """Return the access keys of a user for the audit log, without the secrets."""
    return tuple({"key": each.key, "created_ms": each.created_ms} for each in user.access_keys)
