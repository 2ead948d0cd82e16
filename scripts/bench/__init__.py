"""What FlintMQ reaches, measured against a real broker process: ``scripts/bench/run``."""
