"""Reading: pulls, queries, offsets and commits, and stored messages that are decoded on access.

The driver asks ``topic_iterator`` what to pull next; nothing here waits. Consumer groups, which also keep members and
assignments, are in ``client.groups``. Read first: ``batch``, then ``queue_reader``.
"""
