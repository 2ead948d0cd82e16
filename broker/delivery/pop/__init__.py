"""Messages that are acknowledged one by one (RocketMQ's POP): any number of consumers share a queue.

<<<<<<< ours
``table.py`` has the state of one queue and that of all queues, does no I/O and knows no protocol, and writes every
change down. Read it first, then ``service.py``, which connects it with the store.
=======
``in_flight.py`` is the state of one queue, ``table.py`` that of all queues; neither does I/O or knows a protocol. Read
them first, then ``service.py``, which connects them with the store. ``table.py`` writes every change down.
>>>>>>> theirs
"""
