"""A soak of consumer groups: members that join, leave and are killed, listeners that fail, a broker that is killed."""
