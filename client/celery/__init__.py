"""FlintMQ as the broker of Celery, and of any program that uses kombu. See ``docs/tutorials/celery.md``.

Importing this package makes the schemes ``flintmq://`` and ``flintmqs://`` (TLS) known to kombu. It needs the extra
``flintmq[celery]``, and uses nothing of FlintMQ but its public clients, so that it can serve as a pattern for others.

===================  ====================================================================================
``transport``        ``Transport``: the URL, the connection, the event loop of a worker
``channel``          ``Channel``: queues, exchanges, acknowledgements
``queue_member``     a thread that receives the messages of a queue, as a member of its group
``exchange_reader``  a thread that follows an exchange for a queue of this process alone
``window``           the messages that are not acknowledged yet, and how many there may be
``arrivals``         what the threads have received, until the thread of the connection takes it
``envelope``         kombu's messages as FlintMQ's, and back
``clients``          the clients of this process, and which of their errors kombu may try again
===================  ====================================================================================
"""

from __future__ import annotations

try:
    from kombu.transport import TRANSPORT_ALIASES

    from .transport import SecureTransport as SecureTransport
    from .transport import Transport as Transport
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{__name__} needs {missing.name}: pip install 'flintmq[celery]'", name=missing.name
    ) from missing

TRANSPORT_ALIASES.setdefault("flintmq", f"{__name__}.transport:Transport")
TRANSPORT_ALIASES.setdefault("flintmqs", f"{__name__}.transport:SecureTransport")
