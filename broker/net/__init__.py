"""Connections: sockets, frames, TLS, and the order of responses.

A module that knows bytes on a connection belongs here; one that knows what a request means belongs in ``handlers``.
Read first: ``connection``.
"""
