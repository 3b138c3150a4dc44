"""The nftables kind, ``Service``: a virtual address in front of some backends.

``service`` defines the kind, ``spec`` its fields, and ``services`` the provider. ``rules`` converts
a service to and from nft's JSON, ``marks`` its metadata to and from comments. ``base`` creates the
objects that all services in a table share. ``nft`` runs the program, and ``monitor`` reads its
events. ``flows`` ends outdated UDP flows, and ``system`` identifies the machine. The page is
docs/kinds/service.md.
"""
