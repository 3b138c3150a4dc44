"""What a Docker Engine has, as kinds: ``Container`` and ``Volume``, one module each.

Their providers are ``containers`` and ``volumes``, imported only where there is an Engine. They
share the calls and what the Engine's answers mean (``engine``) and its feed of changes
(``events``). What can be declared of a container is in ``spec``, what the Engine is sent of it and
shows of it in ``inspection``. The pages are docs/kinds/container.md and docs/kinds/volume.md.
"""
