"""The push consumer: a member of a consumer group whose listener is called with messages as they arrive.

One thread (``engine``) talks to the broker, independently of the listeners: it keeps the member in its group, pulls
ahead within bounds, commits, and sends back failed messages. ``claims`` is its state of each queue, without sockets.
Listeners run in threads (``PushConsumer``) or as tasks of an event loop (``flintmq.client.aio.PushConsumer``).
"""
