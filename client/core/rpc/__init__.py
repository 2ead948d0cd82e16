"""Requests and responses on one connection: addresses, TLS and passwords, HELLO, request ids, retries.

Everything here is true of every command; what one command means belongs to the room of its subject. A request is an
``Operation``, several dependent ones are a ``Plan``. Read first: ``operation``, then ``session``.
"""
