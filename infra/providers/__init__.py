"""Providers: the clients of external APIs, one module for each kind.

A provider implements ``reconciler.provider.Provider`` and registers its ``Kind`` as an entry point.
HTTP providers share ``http`` (one call, sent once), ``answers`` (the meaning of responses),
``endpoint`` (where to call), ``listing`` (all pages of a scope) and ``conflicts`` (obstacles).
``file_root`` and ``file_attributes`` are parts of the kind ``File``. This package may import
``events`` and the interfaces of ``reconciler``.
"""
