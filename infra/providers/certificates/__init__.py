"""The ``Issuer`` and ``Certificate`` kinds, stored below the root of a ``ProviderConfig``.

``issuer`` and ``certificate`` define the kinds, and are pure and cheap to load. ``issuers`` and
``certificates`` are their providers, loaded on connection because their libraries are an extra.
``private_ca`` or ``acme_order`` (with ``http01``) obtains certificates. ``checks`` finds their
problems, ``store`` keeps keys and records, and ``delivery`` writes the files that servers read.
"""
