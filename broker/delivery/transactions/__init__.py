"""RocketMQ's transactions: half messages, their commit or rollback, and checks with the producers."""
