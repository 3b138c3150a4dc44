"""The Docker Engine kinds: ``Container`` and ``Volume``, one module each.

Their providers, ``containers`` and ``volumes``, are imported only if an Engine is configured. They
share the Engine's client and the classification of its responses (``engine``), and its event stream
(``events``). ``spec`` and ``volume_spec`` define the fields. ``inspection`` converts containers to
and from the Engine's format. docs/kinds/container.md and docs/kinds/volume.md document the kinds.
"""
