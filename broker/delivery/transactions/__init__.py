"""RocketMQ's transactions: half messages, their commit or rollback, and checks with the producers.

``records`` makes and reads the records, each as RocketMQ writes it, so that either broker can continue with the
other's; ``service`` opens and ends transactions; ``checks`` asks producers about those that wait too long.
Read first: ``service``, then ``records``.
"""
