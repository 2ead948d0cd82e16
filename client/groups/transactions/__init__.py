"""Transactions: messages that are delivered if, and only if, the sender's related work succeeded.

``registration`` is the thread that registers a producer with the broker and receives its checks; ``decisions`` is this
process's knowledge of its own transactions, without sockets. The producers of both drivers are built on them. Read
first: ``decisions``, then ``producer``.
"""
