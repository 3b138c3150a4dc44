"""What a Docker Engine has, as kinds: ``Container`` and ``Volume``, one module each.

Their providers are ``containers`` and ``volumes``, imported only where there is an Engine. They
share the calls and what the Engine's answers mean (``engine``) and its feed of changes
(``events``). What can be declared is in ``spec`` for a container and in ``volume_spec`` for a
volume. What the Engine is sent of a container and shows of it is in ``inspection``. The pages are
docs/kinds/container.md and docs/kinds/volume.md.
"""
