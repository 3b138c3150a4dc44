"""A small external API of DNS-like records: the second one that this project can reconcile.

It is unlike the shapes API on purpose: no idempotency keys, ``PUT`` with ``If-None-Match: *`` to
create, ``If-Match`` for every other write, tags instead of labels, cursors, errors of its own form,
and a feed of changes to wait at.
Run it with ``python -m infra.records_api --port 0 --data DIR``. It imports nothing of this project.
"""
