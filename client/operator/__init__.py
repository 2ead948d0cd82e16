"""Rules and figures that every tool for operators shares: positions, lags, dead letters, resets, units.

Nothing here prints or asks: the command line and the console show the results, each in its own way. Read first:
``positions``.
"""
