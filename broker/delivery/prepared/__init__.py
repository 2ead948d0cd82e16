"""Prepared messages: many of them, by several producers, committed at once, and once only."""
