"""Reading: pulls, queries by key and time, filters, and copies of records for redelivery.

Nothing here writes to the store. Read first: ``pulls``.
"""
