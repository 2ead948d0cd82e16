"""Spark beside a broker on the same cores: a process with a session, what it is told to do, and what that cost."""
