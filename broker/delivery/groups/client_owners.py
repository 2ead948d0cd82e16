"""The user that each live client belongs to, by the id that the client gave itself."""

from __future__ import annotations

from ....protocol.errors import NoPermission


class ClientOwners:
    """Owners of the ids of live RocketMQ clients and of producers, in whatever groups they are.

    An id belongs to the user who registered it first, until its last registration is gone: replies and questions are
    for the client that is behind it. On a broker without users all ids belong to the same one, whose name is empty.
    """

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, int]] = {}
        """User and number of registrations by id."""

    def check(self, client_id: str, user: str) -> None:
        """Raise ``NoPermission`` if another user has a live client with this id."""
        owner = self._owners.get(client_id)
        if owner is not None and owner[0] != user:
            raise NoPermission(
                f"client id {client_id} belongs to a live client of another user; give this client another id "
                "(instanceName), or stop the other one first"
            )

    def add(self, client_id: str, user: str) -> None:
        """Count a new registration in a group. Raises ``NoPermission``."""
        self.check(client_id, user)
        self._owners[client_id] = (user, self._owners.get(client_id, (user, 0))[1] + 1)

    def remove(self, client_id: str) -> None:
        """Take a registration back."""
        user, count = self._owners.pop(client_id)
        if count > 1:
            self._owners[client_id] = (user, count - 1)
