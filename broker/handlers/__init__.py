"""Handlers: one function for each command, grouped by subject.

A handler decodes its request, calls the store or a delivery service, and answers; rules that outlive a request belong
in ``delivery``. A handler gets the request and the parts of the broker that its parameters name.
Read first: ``produce``, then ``registry``, which maps commands to handlers.
"""
