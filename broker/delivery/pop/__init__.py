"""Messages that are acknowledged one by one (RocketMQ's POP): any number of consumers share a queue.

``table.py`` has the state of one queue and that of all queues, does no I/O and knows no protocol, and writes every
change down. Read it first, then ``service.py``, which connects it with the store.
"""
