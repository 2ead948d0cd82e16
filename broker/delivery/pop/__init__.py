"""Messages that are acknowledged one by one (RocketMQ's POP): any number of consumers share a queue.

``in_flight.py`` is the state of one queue, ``table.py`` that of all queues; neither does I/O or knows a protocol. Read
them first, then ``service.py``, which connects them with the store. ``journal.py`` writes every change down.
"""
