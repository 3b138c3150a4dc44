"""Targets, compared with the measured values."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.converge.results import Case, Target

_SHAPES = 2_000
_CONVERGE_SECONDS = 2.2
_IDLE_P50_MS = 6.0
_STACK_MB = 400.0
_REPLAY_SHARE = 0.75


def targets(cases: Sequence[Case]) -> tuple[Target, ...]:
    """Return the targets that the cases measure."""
    results: list[Target] = []
    for case in cases:
        case_name = f"{case.shapes:,} resources, {case.latency_ms:g} ms"
        results += [
            _fact(
                f"{case_name}: all exist, then none",
                case.converge.shapes_in_api == case.shapes and case.withdrawal.shapes_in_api == 0,
            ),
            _zero(f"{case_name}: restart, external writes", case.restart.external_writes),
            _zero(
                f"{case_name}: restart, reads of individual resources", case.restart.resource_reads
            ),
            _zero(f"{case_name}: restart, new events", case.restart.new_events),
            _fact(
                f"{case_name}: exactly the deleted objects are restored",
                case.drift.restored == case.drift.deleted and case.drift.other_effects == 0,
            ),
            _below(f"{case_name}: memory of the stack", case.stack_peak_mb, _STACK_MB, "MB"),
            _at_least_share(
                f"{case_name}: replay, compared with the ordered consumer",
                case.replay.rebuild_share,
            ),
        ]
        if case.shapes == _SHAPES and not case.latency_ms:
            results.append(
                _below(f"{case_name}: converged", case.converge.seconds, _CONVERGE_SECONDS, "s")
            )
        if case.idle is not None:
            p50 = case.idle.exists_p50_ms
            results.append(
                _below(f"{case_name}: idle, declared to exists, p50", p50, _IDLE_P50_MS, "ms")
            )
    return tuple(results)


def _fact(name: str, holds: bool) -> Target:
    return Target(name, "yes", "yes" if holds else "no", holds, is_fact=True)


def _zero(name: str, count: int) -> Target:
    return Target(name, "0", str(count), count == 0, is_fact=True)


def _below(name: str, measured: float, limit: float, unit: str) -> Target:
    return Target(name, f"< {limit:g} {unit}", f"{measured:g} {unit}", measured < limit)


def _at_least_share(name: str, measured: float) -> Target:
    met = measured >= _REPLAY_SHARE
    return Target(name, f"≥ {_REPLAY_SHARE:.0%}", f"{measured:.0%}", met)
