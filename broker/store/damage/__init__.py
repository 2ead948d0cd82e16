"""Damage that is contained: the quarantine and the records that fill holes.

Reads need these to say which messages are lost; finding and filling holes belongs in ``recovery``. Read first:
``quarantine``.
"""
