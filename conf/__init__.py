"""Files for operators that ship with the broker; ``broker.toml`` lists every setting with its default."""
