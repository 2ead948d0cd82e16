"""The core's messages as requests, responses and one-way frames of the protocol."""

from __future__ import annotations

import msgpack

from ....protocol.commands import (
    EPOCHS_MAX,
    ReplicateAnswer,
    ReplicateLogRequest,
    ReplicateRequest,
    ReportPositionRequest,
)
from ....protocol.errors import InvalidParameter
from ..core.epochs import Epoch, Epochs
from ..core.messages import Hello, LogPiece, PositionReport, Welcome

Bytes = bytes | memoryview


def encode_epochs(epochs: Epochs) -> bytes:
    """Return the body of a REPLICATE request or response."""
    packed: bytes = msgpack.packb([list(each) for each in epochs])
    return packed


def decode_epochs(body: Bytes) -> Epochs:
    """Return the epochs of such a body. Raises ``InvalidParameter`` unless numbers and offsets grow."""
    try:
        rows = msgpack.unpackb(body, max_array_len=EPOCHS_MAX)
        epochs = tuple(Epoch(number, start) for number, start in rows)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InvalidParameter(f"the body is not an array of epochs: {error}") from error
    # Epochs count from 1, and the first one may start at 0.
    last = Epoch(0, -1)
    for epoch in epochs:
        if not (
            type(epoch.number) is type(epoch.start) is int and last.number < epoch.number and last.start < epoch.start
        ):
            raise InvalidParameter(f"epoch {tuple(epoch)} must not follow epoch {tuple(last)}")
        last = epoch
    return epochs


def hello_of(request: ReplicateRequest, body: Bytes) -> Hello:
    """Return the follower's first message. Raises ``InvalidParameter``."""
    return Hello(request.cluster_id, request.epoch, request.member, request.end, decode_epochs(body))


def request_of(hello: Hello, file_bytes: int) -> ReplicateRequest:
    """Return the request of a follower's first message; its body has the epochs."""
    return ReplicateRequest(
        cluster_id=hello.cluster_id, epoch=hello.epoch, member=hello.member, end=hello.end, file_bytes=file_bytes
    )


def welcome_of(answer: ReplicateAnswer, body: Bytes) -> Welcome:
    """Return the primary's response. Raises ``InvalidParameter``."""
    return Welcome(answer.epoch, answer.begin, answer.restart, decode_epochs(body))


def answer_of(welcome: Welcome) -> ReplicateAnswer:
    """Return the response of a primary; its body has the epochs."""
    return ReplicateAnswer(epoch=welcome.epoch, begin=welcome.begin, restart=welcome.restart)


def piece_of(request: ReplicateLogRequest, body_bytes: int) -> LogPiece:
    """Return the piece of a frame. Raises ``InvalidParameter`` if its body has another length than it says."""
    if request.end - request.offset != body_bytes:
        raise InvalidParameter(f"a piece from {request.offset:,} to {request.end:,} has a body of {body_bytes:,} bytes")
    return LogPiece(request.epoch, request.offset, request.end, request.confirmed)


def frame_of(piece: LogPiece) -> ReplicateLogRequest:
    """Return the frame of a piece; its body has the log's bytes."""
    return ReplicateLogRequest(epoch=piece.epoch, offset=piece.offset, end=piece.end, confirmed=piece.confirmed)


def position_of(request: ReportPositionRequest) -> PositionReport:
    """Return the position that a follower reports."""
    return PositionReport(request.epoch, request.written, request.flushed, request.complete, request.stops)
