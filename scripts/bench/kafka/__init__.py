"""A real Apache Kafka to be compared with: its jars, and a broker process with a topic."""
