"""Producers that read no response: ``python -m tests.flood PORT CONNECTIONS BYTES FRAME_BYTES BODY_BYTES``.

Each connection says HELLO and sends ``BYTES`` bytes of PRODUCE frames: the last frame may be truncated. The program
prints how many bytes it sent, after the last one or when the broker has read nothing for ``QUIET_S``; then it stays
connected until its standard input ends.
"""

from __future__ import annotations

import resource
import select
import socket
import sys

import msgpack

from flintmq.protocol.commands import HELLO, LAYOUT_COLUMNS, PRODUCE
from flintmq.protocol.frames import REQUEST, encode_frame

QUIET_S = 3.0
PIECE_BYTES = 256 * 1024
SENDING_BYTES = 128 * 1024


def produce_frame(frame_bytes: int, body_bytes: int) -> bytes:
    """Return a PRODUCE frame of about ``frame_bytes`` with messages of ``body_bytes`` each."""
    count = max(1, (frame_bytes - 200) // (body_bytes + 4))
    body = msgpack.packb([bytes(body_bytes)] * count) + msgpack.packb([None] * count)
    fields = {"topic": "flood", "count": count, "layout": LAYOUT_COLUMNS}
    return encode_frame(REQUEST, PRODUCE.code, 7, fields, body)


def flood(port: int, connections: int, bytes_each: int, frame: bytes) -> int:
    """Open the connections and send; return how many bytes were sent."""
    greeting = encode_frame(REQUEST, HELLO.code, 1, {"protocol": 1, "client": "flood"})
    poller = select.epoll()
    socks: dict[int, socket.socket] = {}
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        # All sockets are on one machine, whose memory for bytes in transit is limited.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENDING_BYTES)
        sock.sendall(greeting)
        sock.setblocking(False)
        socks[sock.fileno()] = sock
        poller.register(sock, select.EPOLLOUT)
    view = memoryview(frame)
    at = dict.fromkeys(socks, 0)
    unsent = len(socks)
    while unsent and (ready := poller.poll(QUIET_S)):
        for descriptor, _ in ready:
            begin = at[descriptor] % len(frame)
            try:
                room = min(begin + PIECE_BYTES, begin + bytes_each - at[descriptor])
                at[descriptor] += socks[descriptor].send(view[begin:room])
            except BlockingIOError:
                continue
            except OSError:  # the broker closed it
                at[descriptor] += bytes_each
            if at[descriptor] >= bytes_each:
                poller.unregister(descriptor)
                unsent -= 1
    sent = sum(at.values())
    sys.stdout.write(f"sent {sent} bytes, {unsent} connections wait\n")
    sys.stdout.flush()
    sys.stdin.read()
    return sent


if __name__ == "__main__":
    port, connections, bytes_each, frame_bytes, body_bytes = map(int, sys.argv[1:])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    frame = produce_frame(frame_bytes, body_bytes)
    flood(port, connections, bytes_each, frame)
