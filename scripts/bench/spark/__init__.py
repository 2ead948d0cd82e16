"""Spark on the same cores as a broker: a process with a session, its jobs, and their cost."""
