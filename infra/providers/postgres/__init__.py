"""PostgreSQL's own objects as kinds: ``Database``, ``DatabaseRole`` and ``Grant``.

``database``, ``role`` and ``grant`` are the kinds, cheap to load. What can be declared of each is
in ``database_spec``, ``role_spec`` and ``grant_spec``. ``databases``, ``roles`` and ``grants`` are
their providers, loaded when one is connected, since psycopg is an extra. They share the connections
(``server``), what errors mean (``errors``), which names nobody may declare (``names``), and what is
kept in comments (``marks``). The pages are in docs/kinds.
"""
