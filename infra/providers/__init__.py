"""Providers: the clients of external APIs, one module for each kind.

A provider implements ``reconciler.provider.Provider`` and registers its ``Kind`` as an entry point.
What HTTP providers share is in ``http`` (one call, made once), ``answers`` (what an answer means),
``endpoint`` (where to call), ``listing`` (all pages of a scope) and ``conflicts`` (what stands in
the way). ``file_root`` and ``file_attributes`` are parts of the kind ``File``. This package may
import ``events`` and the interfaces of ``reconciler``.
"""
