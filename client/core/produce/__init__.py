"""Producing: from the arguments of a call to PRODUCE frames, and from their responses to receipts.

Only what a producer needs may enter: readers share nothing with it but topics, compression and requests. Read first:
``producer_core``, which calls ``grouping`` and ``accumulator``; ``delivery`` decides what is sent, retried and settled.
"""
