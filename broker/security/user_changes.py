"""What changed in the file of users, for the audit log: who came and went, and what each may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .users import User


@dataclass(frozen=True, slots=True)
class UserChange:
    """``action``: USER_ADDED, USER_REMOVED, USER_PASSWORD or USER_GRANTS; ``before`` and ``after``: grants."""

    action: str
    name: str
    before: tuple[dict[str, Any], ...] | None = None
    after: tuple[dict[str, Any], ...] | None = None


def user_changes(before: Iterable[User], after: Iterable[User]) -> Iterator[UserChange]:
    """The changes from the one to the other, by name. Never anything of a password but that it changed."""
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
