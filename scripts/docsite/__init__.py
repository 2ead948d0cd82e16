"""The documentation site, which ``scripts/docs`` builds: its pages, those generated from the code, and its checks.

====================  =======================================================================================
``pages``             the tree of the site: the title and the source of each page
``reference_pages``   settings, metrics, errors, every command, the Python interface
``markdown``          GitHub's Markdown as the site's: links, anchors, lists, tables
``built_site``        checks of the finished HTML: no dead link, nothing from another host
``build``             all of it, in order
====================  =======================================================================================

The interface is read from the running classes, because many methods of the clients are made by functions
(``blocking_method``): a tool that only reads sources, such as mkdocstrings, finds neither their signatures nor their
texts.
"""
