"""The requests of a RocketMQ slave to its master's ``listenPort``."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from ...protocol.remoting.codes import SUCCESS
from ..remoting.outbound import OutboundConnection, RemotingAnswer, connected_as
from .errors import MasterRefused


class MasterClient(OutboundConnection):
    """A connection to a RocketMQ broker; one request at a time."""

    kind, advice = "RocketMQ broker", ". Name its listenPort (10911 by default)"

    async def call(self, code: int, **fields: str) -> RemotingAnswer:
        """Return the successful response to a request. Raises as ``ask``, and ``MasterRefused``."""
        answer = await self.ask(code, **fields)
        if answer.code != SUCCESS:
            raise MasterRefused(
                f"{self.address} refused request {code} with code {answer.code}: {answer.remark[:500]}. If it requires "
                "access keys, allow this address without them: this command does not sign requests",
                answer.code,
            )
        return answer


def connected(host: str, port: int) -> AbstractAsyncContextManager[MasterClient]:
    """Connect to a RocketMQ broker's ``listenPort``. Raises ``ConnectionFailed``."""
    return connected_as(MasterClient, host, port)
