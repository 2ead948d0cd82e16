"""Users: SCRAM, permissions, and the file that both the broker and the command line write.

Read first: ``users``.
"""
