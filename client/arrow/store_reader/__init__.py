"""A store's CommitLog read as files, without a broker: where it ends, its cuts, and its records as Arrow batches."""
