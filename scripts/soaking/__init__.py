"""A soak: producers and followers that live through blocked loops and a broker that comes and goes."""
