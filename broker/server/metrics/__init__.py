"""What an operator's tools ask over HTTP: metrics for Prometheus, and whether the broker lives and is ready."""
