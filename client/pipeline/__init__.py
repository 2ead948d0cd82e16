"""The flights pipeline: FlintMQ's example of Spark Structured Streaming, as one would run it.

Flights are replayed into a topic (``replay``), read by Spark (``queries``: what is computed, to be read first), counted
by hour and origin into Parquet, and those with a long delay sent back to a topic as alerts (``runner``: both queries
until they end, fail or are stopped). ``verification`` computes the same from the CSV in plain Python. The command line
is ``flintmq pipeline``; ``client/spark/README.md`` says how it is used, and why it is made so.

Nothing here needs click or rich, and only what starts or reads with Spark needs PySpark.
"""
