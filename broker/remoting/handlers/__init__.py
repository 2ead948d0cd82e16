"""One function for each request of a RocketMQ client, grouped by subject.

It gets the request, and the parts of the broker or the gateway that it names. ``produce.py`` and ``pull.py`` pass the
messages to FlintMQ's own handlers.
"""
