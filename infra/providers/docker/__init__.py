"""The kinds of a Docker Engine: ``Container`` and ``Volume``, one module each.

Their providers are ``containers`` and ``volumes``, imported only if there is an Engine. They share
the calls and the meaning of the Engine's responses (``engine``) and its feed of changes
(``events``). The fields are in ``spec`` for a container and in ``volume_spec`` for a volume.
``inspection`` converts containers to and from the Engine's form. The pages are
docs/kinds/container.md and docs/kinds/volume.md.
"""
