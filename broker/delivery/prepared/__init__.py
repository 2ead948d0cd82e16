"""Staged transactions (on the wire: *prepared*): messages of several producers, committed at once and exactly once."""
