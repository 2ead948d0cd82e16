"""Memory budgets that all connections share: receive buffers and responses that are not sent yet.

A class here counts bytes and decides who waits; it knows no socket. Read first: ``send_budget``.
"""
