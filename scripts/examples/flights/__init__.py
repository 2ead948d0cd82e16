"""FlintMQ and Spark Structured Streaming on real input; started by ``scripts/examples/flights/run``.

``replay`` sends the flights of 2013 to a topic. Spark reads them (``queries`` says what it computes: read this first),
counts departures by hour and origin into Parquet and sends an alert for each long delay to another topic; ``runner``
runs both queries until they end, fail or are stopped. ``verification`` computes the same from the CSV in plain Python.
``README.md`` says how to use it and why it is built this way.

Only modules that start Spark or read with it need PySpark.
"""
