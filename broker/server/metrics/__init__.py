"""The HTTP endpoint for an operator's tools: metrics for Prometheus, and health and readiness checks."""
