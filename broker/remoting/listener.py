"""The listener of the gateway: what the server needs to accept RocketMQ's clients."""

from __future__ import annotations

import socket
from functools import partial

from ..net.server import Listener
from .connection import RemotingConnection, encode_refusal
from .gateway import RemotingGateway


def remoting_listener(gateway: RemotingGateway, sockets: list[socket.socket]) -> Listener:
    """Return the listener of a gateway for ``sockets``."""
    connect = partial(RemotingConnection, gateway=gateway)
    return Listener(sockets, "remoting.listen", connect, encode_refusal)
