"""The process around a store: command line, start and stop, logging, banner, systemd.

The process uses everything here once. A part of the broker that a test can create belongs in a room below.
Read first: ``lifecycle``, which creates all parts in order and stops them in reverse.
"""
