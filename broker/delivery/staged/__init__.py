"""Staged transactions, which the protocol calls prepared messages: committed at once, and once only.

Read first: ``service``; ``notes`` has the records that make a commit final, ``startup_scan`` reads them back.
"""
