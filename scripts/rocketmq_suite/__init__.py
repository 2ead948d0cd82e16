"""Suites of RocketMQ that run against a FlintMQ broker: see ``__main__.py``."""
