"""What ships with the broker for operators: ``broker.toml``, every setting with its default."""
