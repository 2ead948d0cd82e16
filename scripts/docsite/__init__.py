"""The documentation site, which ``scripts/docs`` builds: its pages, those generated from the code, and its checks.

The interface is read from the running classes, because many methods of the clients are made by functions
(``blocking_method``): a tool that only reads sources, such as mkdocstrings, finds neither their signatures nor their
texts.
"""
