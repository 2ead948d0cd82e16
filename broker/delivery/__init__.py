"""Delivery: everything that happens to messages besides storing and reading. Groups, retries, delays, transactions.

All of it runs on the event loop. None of it knows connections: a client to notify or ask is a ``Remote``.
"""
