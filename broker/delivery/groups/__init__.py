"""Consumer groups: membership, assignment of queues, retries, and producer groups.

Nothing here knows a connection; clients are ``ClientHandle``. Read first: ``coordinator``.
"""
