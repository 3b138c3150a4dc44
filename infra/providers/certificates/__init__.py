"""Certificates as kinds: ``Issuer`` and ``Certificate``, beneath the root of a ``ProviderConfig``.

``issuer`` and ``certificate`` are the kinds, pure and cheap to load; ``issuers`` and
``certificates`` are their providers, loaded when one is connected, since their libraries are an
extra. Who signs is ``own_authority`` or ``acme_authority`` (with ``http01``); what is wrong with a
certificate, and what mends it, says ``checks``; what is kept of both is in ``store``, and
``delivery`` puts files where servers read them. The pages are in docs/kinds.
"""
