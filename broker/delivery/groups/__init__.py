"""Consumer groups: membership, assignment of queues, progress; RocketMQ's clients, and producers.

State machines in memory, driven by requests and by a clock; only committed offsets are persistent. Nothing here knows a
connection; clients are ``ClientHandle``. Read first: ``coordinator``, then ``group``.
"""
