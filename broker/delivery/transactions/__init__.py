"""RocketMQ's transactions: half messages, their commit or rollback, and checks with the producers.

``table`` is the state, without I/O; ``service`` opens and ends transactions, ``end_writer`` writes their ends,
``checks`` asks producers about those that wait too long, ``startup_scan`` reads them from the log. Every record is as
RocketMQ writes it, so that either broker can continue with the other's. Read first: ``service``, then ``records``.
"""
