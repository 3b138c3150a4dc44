"""What nftables has, as a kind: ``Service``, a virtual address in front of some backends.

``service`` is the kind, ``spec`` what can be declared, ``services`` the provider. ``rules`` is a
service in the JSON of nft, ``marks`` what the comments of its rules keep, ``base`` what all
services of a table share. ``nft`` runs the program, ``monitor`` hears its events. The page is
docs/kinds/service.md.
"""
