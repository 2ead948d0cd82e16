"""Benchmarks of FlintMQ against a real broker process; start them with ``scripts/bench/run``."""
