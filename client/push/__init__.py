"""The push consumer: a member of a consumer group that is handed messages as they come.

One thread (``engine``) speaks to the broker, whatever the listener does: it stays in the group, pulls ahead within
bounds, commits, and sends back what failed. ``claims`` is what it knows of each queue, without sockets. Listeners run
in threads (``PushConsumer``) or as tasks of an event loop (``flintmq.client.aio.PushConsumer``).
"""
