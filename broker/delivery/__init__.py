"""Delivery: what becomes of messages beyond being stored and read. Groups, retries, delays, transactions.

All of it belongs to the event loop, and none of it knows a connection: who is to be told something is a ``Remote``.
"""
