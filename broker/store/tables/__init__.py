"""Tables: topics, committed offsets, the state of the store, the checkpoint, the clock.

A module here reads and writes one small file; it knows no record. Read first: ``topic_table``.
"""
