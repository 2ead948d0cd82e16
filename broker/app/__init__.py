"""The process around a store: command line, start and stop, logging, banner, systemd.

Everything here exists once in a process. A part that a test can create by itself belongs in a package below.
Read first: ``lifecycle``, which creates all parts in order and stops them in reverse.
"""
