"""The listener of the gateway: what the server needs to accept RocketMQ's clients."""

from __future__ import annotations

import socket
from functools import partial

from ..net.server import Listener
from ..requests.broker import Broker
from .connection import RemotingConnection, encode_refusal
from .gateway import RemotingGateway


def remoting_listener(broker: Broker, sockets: list[socket.socket], address: tuple[str, int]) -> Listener:
    """Return the listener for ``sockets``. ``address``: host and port that routes name."""
    gateway = RemotingGateway(broker, address)
    connect = partial(RemotingConnection, gateway=gateway)
    return Listener(sockets, "remoting.listen", connect, encode_refusal)
