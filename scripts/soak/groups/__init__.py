"""The soak test of consumer groups: members join, leave and are killed, listeners fail, and the broker is killed."""
