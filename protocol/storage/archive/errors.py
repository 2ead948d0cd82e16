"""What can be wrong with an archive."""

from __future__ import annotations

from ...errors import FlintError


class ArchiveError(FlintError):
    """Root of the errors about an archive."""


class CorruptObject(ArchiveError):
    """An object of the archive is damaged, truncated or not of this format. Nothing of the damaged part is used.

    ``name``: the object, relative to the archive's prefix; ``reason``: the part and what is wrong with it.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"the object {name} of the archive is damaged: {reason}. Restore it from a copy or from an earlier version "
            "of the bucket; the rest of the archive can be read"
        )
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.reason)


class UnknownFormat(ArchiveError):
    """An object was written in a format that this release does not know; nothing of it is used."""
