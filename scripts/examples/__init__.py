"""Examples on real input: each package is one, started by a script of its own."""
