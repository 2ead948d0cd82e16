"""What the broker does for each command, by subject. A handler takes the connection it came from and its frame."""
