"""FlintMQ for Spark: a streaming source, a batch source, an archive source and a sink, over PySpark's data source API.

Needs ``flintmq[spark]``.
"""
