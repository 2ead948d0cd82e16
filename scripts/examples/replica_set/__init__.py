"""The demonstration of a replica set that loses its primary; started by ``scripts/replica-demo``."""
