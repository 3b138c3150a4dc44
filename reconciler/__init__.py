"""The reconciler: keeps what was declared and what exists the same.

``shape`` is the pure core: an event-sourced aggregate per shape that decides actions, without I/O.
``services`` run it: decider, worker, observer, projector. ``provider`` and ``kinds`` say what an
external API must offer; ``ports`` says what the services need from a bus; ``sdk`` is for other
services and ``cli`` for people.

May import ``events``, ``projections`` from its services, and ``infra`` only in
``reconciler.wiring``, where a process is put together.
"""
