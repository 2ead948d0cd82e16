"""IndexFiles: finding records by key, and checking the chains of entries.

Read first: ``index_file``.
"""
