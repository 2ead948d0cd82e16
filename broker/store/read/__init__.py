"""Reading: pulls, queries by key and time, filters, and copies of records for redelivery.

Only ``record_copies`` writes to the store: it appends the copies to the log. Read first: ``pulls``.
"""
