"""The quickstart: the flights of 2013 go through a broker and come back; started by ``scripts/quickstart``."""
