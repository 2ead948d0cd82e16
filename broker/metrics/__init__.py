"""Metrics and health over HTTP, for Prometheus and supervisors.

Every metric has one entry in ``catalog``; ``collector`` fills them from the broker. Read first: ``catalog``.
"""
