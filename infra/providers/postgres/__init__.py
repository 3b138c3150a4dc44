"""PostgreSQL's own objects as kinds: ``Database``, ``DatabaseRole`` and ``Grant``.

``database``, ``role`` and ``grant`` define the kinds and are fast to import. Their fields are in
``database_spec``, ``role_spec`` and ``grant_spec``. Their providers, ``databases``, ``roles`` and
``grants``, are imported on connection, because psycopg is an extra. They share the connections
(``server``), the classification of errors (``errors``), the reserved names (``names``), and the
metadata in comments (``marks``). The pages are in docs/kinds.
"""
