"""Requests of one connection: who sent them, how they wait, and the order of their responses; and the broker's parts.

A connection of ``net`` has one ``ResponseQueue``, one ``DeferredRequests`` and one ``ConnectedClient``; each handler
gets a ``Request``, which holds them. Nothing here knows sockets or commands. Read first: ``request``.
"""
