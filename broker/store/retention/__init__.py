"""Retention: which files of the log can go, and which messages a topic no longer shows.

Read first: ``expiry``.
"""
