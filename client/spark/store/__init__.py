"""The store source, ``spark.read.format("flintmq-store")``: a CommitLog read by Spark's tasks, no broker."""
