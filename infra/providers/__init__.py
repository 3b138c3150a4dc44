"""Providers: clients of external APIs, one module or package per system.

A provider implements ``reconciler.provider.Provider`` and registers its ``Kind`` as an entry point.
HTTP providers share ``http`` (calls that are sent once), ``responses`` (the classification of
responses) and ``endpoint`` (endpoints and credentials). ``file_root``, ``file_attributes`` and
``file_errors`` belong to the ``File`` kind. This package may import ``events`` and the interfaces
of ``reconciler``.
"""
