"""Push consumer: a member of a consumer group whose listener is called with messages as they arrive.

One thread (``group_client``) talks to the broker, independently of the listeners: it keeps the member in its group,
pulls ahead within bounds, commits, and sends back failed messages. ``assignments`` is its state of each queue, without
sockets. Listeners run in threads (``consumer``) or as tasks of an event loop (``aio_consumer``). Read first:
``assignments``, then ``group_client``.
"""
