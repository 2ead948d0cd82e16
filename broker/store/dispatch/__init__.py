"""Dispatch: from records in the log to units, index entries and producer runs, and syncing those to disk.

Read first: ``dispatcher``.
"""
