"""The archive source, ``spark.read.format("flintmq-store")``: CommitLog files read by Spark's tasks, without a broker."""
