"""The kind of nftables: ``Service``, a virtual address in front of some backends.

``service`` is the kind, ``spec`` has its fields, ``services`` the provider. ``rules`` converts a
service to and from nft's JSON, ``marks`` has its metadata in comments, ``base`` the objects that
all services of a table share. ``nft`` runs the program, ``monitor`` reads its events. The page is
docs/kinds/service.md.
"""
