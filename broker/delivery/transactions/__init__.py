"""Transactions as RocketMQ has them: half messages, their commit or rollback, and asking producers how it ended."""
