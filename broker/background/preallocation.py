"""AllocateMappedFileService: prepares the CommitLog's next extents and file ahead of the write offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .service import Service, log

if TYPE_CHECKING:
    from ..store import MessageStore
    from .service import OnFatal, Post


class AllocateMappedFileService(Service):
    """Preallocation, so that an append never waits for the file system. A full disk is not an error here: the append
    that needs the space is refused with its own error."""

    name = "allocation"
    interval_seconds = 0.5

    def __init__(self, store: MessageStore, post: Post, on_fatal: OnFatal) -> None:
        super().__init__(post, on_fatal)
        self._store = store
        self.full = False
        """True if the last attempt to preallocate found the disk full."""

    def do_once(self) -> bool:
        """Prepare one step of extents, or the next file."""
        try:
            did = self._store.commitlog.prepare_ahead()
        except OSError:
            if not self.full:
                log.warning("the disk of %s is full; refusing new messages until there is space", self._store.path)
            self.full = True
            return False
        if did and self.full:
            log.warning("the disk of %s has space again", self._store.path)
            self.full = False
        return did
