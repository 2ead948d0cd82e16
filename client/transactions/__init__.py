"""Transactions: messages that are delivered if, and only if, what their sender did beside went well.

``registration`` is the thread that makes a producer known to the broker and hears its questions; ``decisions`` is what
this process knows of its own transactions, without sockets. Both drivers' producers stand on them.
"""
