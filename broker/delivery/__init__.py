"""Delivery: everything that happens to messages besides storing and reading. Groups, retries, delays, transactions.

All of it runs on the event loop, in steps of about a millisecond. It uses the store and ``background``; it
knows no connections: a client to notify or ask is a ``ClientHandle``. What belongs to one feature has a package of its
own; what several share is here. Read first: ``writer``, then ``README.md``.
"""
