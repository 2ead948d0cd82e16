"""Members of a consumer group: push consumers, whose listener is called, and group consumers, whose messages are
received and settled one by one.

One thread (``group_client``) talks to the broker, independently of the listeners: it keeps the member in its group,
pulls ahead within bounds, commits, and sends back failed messages. ``assignments`` is its state of each queue, without
sockets. Listeners run in threads (``consumer``) or as tasks of an event loop (``aio_consumer``); ``deliveries`` are for
threads (``receiver``) or tasks (``aio_receiver``). Read first: ``claim`` and ``assignments``, then ``group_client``.
"""
