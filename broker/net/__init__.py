"""Connections: sockets, frames, TLS and timeouts.

A module that knows bytes on a connection belongs here; responses and waiting requests belong in ``requests``, and what
a request means in ``handlers``. Read first: ``connection``.
"""
