"""The answer to a RocketMQ client that connects to FlintMQ's own port, in its protocol."""

from __future__ import annotations

from ...protocol.errors import BrokerError
from ...protocol.frames import RESPONSE
from ...protocol.remoting.codes import SYSTEM_ERROR
from ...protocol.remoting.command import encode_head

OF_ROCKETMQ = (
    "this port speaks FlintMQ's protocol, and the request is one of RocketMQ's: give RocketMQ's clients the address of "
    "remoting.listen"
)


def encode_for_rocketmq(error: BrokerError, opaque: int) -> bytes:
    """Return an encoded error response that RocketMQ's clients understand. ``opaque``: number of their request."""
    return encode_head(RESPONSE, SYSTEM_ERROR, opaque, None, 0, remark=error.message)
