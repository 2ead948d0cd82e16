"""A real Apache Kafka for comparison: its jars, and a broker process with a topic."""
