"""The judge of the invariants: rules about the recorded history of a run, from any recorder.

``history`` is the record as plain data, and ``ledger`` holds what the judge concludes from the
events on its own, without any read model, cache, state or decision of the product. ``judging``
applies the rules (``log``, ``declarations``, ``actions``, ``ownership``, ``absence``, ``holds``,
``inputs``, ``end``) as records arrive, or to a whole history that was read afterwards.
``from_bus`` reads a real bus and API, ``from_simulation`` the simulated ones. ``turns`` is
separate: it checks decisions with the product's own ``decide``. The idea is that of Jepsen's
checkers: run anything, kill anything, record everything, and judge the record.
"""
