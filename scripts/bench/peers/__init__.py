"""Other brokers for comparison in the same run: their servers, and one load program for each of their clients."""
