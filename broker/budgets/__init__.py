"""Memory budgets that all connections share: receive buffers, bytes in flight, and responses that are not sent yet.

A class here counts bytes and decides who waits; it knows no socket. Read first: ``send_budget``.
"""
