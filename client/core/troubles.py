"""What goes wrong with connections, as the errors that callers see: the same from every driver."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...protocol.errors import ConnectionFailed, FlintError, RequestTimeout
from .address import Address
from .retry import is_retriable


def unreachable(address: Address, error: OSError) -> ConnectionFailed:
    """No connection could be made."""
    return ConnectionFailed(
        f"cannot reach a broker at {address}: {reason_of(error)}; is it running there? "
        "(flintmq-broker serve starts one)"
    )


def no_hello(address: Address, seconds: float) -> ConnectionFailed:
    """Something listens and does not say HELLO."""
    return ConnectionFailed(f"the broker at {address} did not answer HELLO within {seconds:.1f} s")


def no_broker(address: Address, error: FlintError) -> ConnectionFailed:
    """What listens speaks something else."""
    return ConnectionFailed(f"what listens at {address} is no FlintMQ broker: {error}")


def broke(address: Address, error: OSError) -> ConnectionFailed:
    """A connection that stood is gone."""
    return ConnectionFailed(f"the connection to the broker at {address} broke: {reason_of(error)}")


def closed_there(address: Address) -> ConnectionFailed:
    """The other end closed the connection."""
    return ConnectionFailed(f"the broker at {address} closed the connection")


def closed_here(address: Address) -> ConnectionFailed:
    """This end closed the connection."""
    return ConnectionFailed(f"the connection to the broker at {address} was closed")


def not_greeted(address: Address, error: FlintError, *, tls: bool) -> ConnectionFailed:
    """The connection went before HELLO was answered."""
    perhaps = (
        "perhaps it asks for a certificate (tls_certificate, tls_key), or does not accept this one"
        if tls
        else "perhaps it wants TLS (tls=True)"
    )
    return ConnectionFailed(f"{error}, instead of answering HELLO; {perhaps}")


def silent(address: Address, seconds: float) -> ConnectionFailed:
    """Nothing was answered for a long time."""
    return ConnectionFailed(f"the broker at {address} has not answered for {seconds:g} s")


def unanswered(address: Address, command: str, seconds: float) -> RequestTimeout:
    """A call's time is over."""
    return RequestTimeout(f"the broker at {address} did not answer {command} within {seconds:g} s")


def no_address_answered(failures: Sequence[FlintError]) -> FlintError:
    """Why none of several addresses could be used. An address that refuses for good matters only if all do."""
    if len(failures) == 1 or not any(map(is_retriable, failures)):
        return failures[0]
    combined = ConnectionFailed("; ".join(str(error) for error in failures))
    combined.__cause__ = failures[0]
    return combined


def reason_of(error: OSError) -> str:
    """The operating system's words: asyncio puts its own into ``strerror``."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
