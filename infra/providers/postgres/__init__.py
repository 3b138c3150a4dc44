"""PostgreSQL's own objects as kinds: ``Database``, ``DatabaseRole`` and ``Grant``.

``database``, ``role`` and ``grant`` are the kinds, fast to import. Their fields are in
``database_spec``, ``role_spec`` and ``grant_spec``. ``databases``, ``roles`` and ``grants`` are
their providers, imported when one connects, because psycopg is an extra. They share the connections
(``server``), the meaning of errors (``errors``), the reserved names (``names``), and the metadata
in comments (``marks``). The pages are in docs/kinds.
"""
