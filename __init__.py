"""FlintMQ: a standalone, durable message-log broker with Apache RocketMQ's store, and its thin client.

Import what you need from its parts: :mod:`flintmq.client` for applications, :mod:`flintmq.broker` for the daemon.
This module imports nothing, so that the client stays light.
"""
