"""Plain sockets that each pop messages of a work queue, then acknowledge them and pop again.

Arguments: address, group, topic, number of connections, messages of a pop. They begin when standard input has a line;
when a pop finds no more, the process prints the number of messages that the broker settled, and again at the next line.
"""

from __future__ import annotations

import select
import struct
import sys
from itertools import accumulate

from flintmq.protocol.commands import ACK_MESSAGE, POP_MESSAGE, RECEIPT_STRUCT, RECORD_SIZE_STRUCT
from flintmq.protocol.frames import REQUEST, encode_frame
from flintmq.protocol.storage.layout import RECORD

from .machine import many_files
from .measure import BenchFailed
from .raw import TIMEOUT_SECONDS, RawClient, connected

LEASE_MS = 60_000
POP_ID, ACK_ID = 1, 2
QUEUE_AT, OFFSET_AT = RECORD.at["queue_id"], RECORD.at["queue_offset"]
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")


def run(clients: list[RawClient], group: str, topic: str, count: int) -> int:
    """Let each connection pop and acknowledge until there is nothing left; return the number of settled messages."""
    names = {"group": group, "topic": topic}
    wanted = {**names, "max_count": count, "lease_ms": LEASE_MS, "start": "first"}
    pop = encode_frame(REQUEST, POP_MESSAGE.code, POP_ID, wanted)
    settled = 0
    with select.epoll() as poller:
        working = {}
        for client in clients:
            working[client.sock.fileno()] = client
            poller.register(client.sock, select.EPOLLIN)
            client.sock.send(pop)
        while working:
            events = poller.poll(TIMEOUT_SECONDS)
            if not events:
                raise BenchFailed(f"no response within {TIMEOUT_SECONDS:.0f} s")
            for descriptor, _ in events:
                client = working[descriptor]
                client.parser.received(client.sock.recv_into(client.parser.writable()))
                while (frame := client.parser.next_frame()) is not None:
                    if frame.code:
                        raise BenchFailed(f"a request was refused with {frame.code}: {frame.fields}")
                    if frame.request_id == ACK_ID:
                        settled += frame.fields["done"]
                    elif found := frame.fields["count"]:
                        receipts = _receipts(frame.body, found, frame.fields["pop_ms"])
                        ack = encode_frame(REQUEST, ACK_MESSAGE.code, ACK_ID, {**names, "count": found}, receipts)
                        client.sock.send(ack + pop)
                    else:
                        poller.unregister(descriptor)
                        del working[descriptor]
    return settled


def _receipts(body: memoryview, count: int, pop_ms: int) -> bytes:
    """Return the receipts of popped records."""
    head = count * RECORD_SIZE_STRUCT.size
    begins = accumulate((size for (size,) in RECORD_SIZE_STRUCT.iter_unpack(body[: head - 4])), initial=head)
    pack = RECEIPT_STRUCT.pack
    at_all = [(*_INT.unpack_from(body, at + QUEUE_AT), *_LONG.unpack_from(body, at + OFFSET_AT)) for at in begins]
    return b"".join([pack(0, queue, offset, pop_ms) for queue, offset in at_all])


def main() -> None:
    address, group, topic, connections, count = sys.argv[1:]
    with many_files(int(connections) + 100), connected(address, int(connections)) as clients:
        print("joined", flush=True)
        sys.stdin.readline()
        settled = run(clients, group, topic, int(count))
        for _ in range(2):
            print(settled, flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    main()
