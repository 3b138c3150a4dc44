"""What one run found out, as it is written to JSON."""

from __future__ import annotations

import msgspec


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    """How every result is written: camelCase."""


class ProcessUsage(_Result, frozen=True):
    """What one process took: CPU seconds of a phase, and its peak memory (VmHWM) by then."""

    process: str
    cpu_seconds: float
    peak_mb: float


class Converge(_Result, frozen=True):
    """All resources declared at once.

    ``seconds``: from before the first publish until the last outcome Converged was received.
    ``exist_seconds``: until the last one was in the API, by its journal. ``declare_seconds``: until
    the bus had stored all declarations. ``requests``: the API's count by method and status.
    """

    seconds: float
    shapes_per_second: float
    exist_seconds: float
    declare_seconds: float
    events: int
    events_per_second: float
    requests: dict[str, dict[str, int]]
    shapes_in_api: int
    usage: tuple[ProcessUsage, ...]


class Restart(_Result, frozen=True):
    """The reconciler stopped and started again with nothing changed.

    ``settled_seconds``: from its start until its first listing was read and nothing waited.
    """

    stop_seconds: float
    ready_seconds: float
    settled_seconds: float
    external_writes: int
    listing_requests: int
    resource_reads: int
    new_events: int
    usage: tuple[ProcessUsage, ...]


class Drift(_Result, frozen=True):
    """A tenth of the resources deleted directly in the API.

    Both times end when the last resource was there again, by the API's journal. ``seconds`` begins
    with the last deletion, ``since_listing_seconds`` with the listing that saw the deletion (the
    longest time of all resources). ``other_effects``: writes other than the restorations.
    """

    resync_seconds: float
    deleted: int
    deleting_seconds: float
    restored: int
    seconds: float
    since_listing_seconds: float
    other_effects: int
    usage: tuple[ProcessUsage, ...]


class Withdrawal(_Result, frozen=True):
    """All declarations withdrawn at once; the times are those of ``Converge``."""

    seconds: float
    shapes_per_second: float
    empty_seconds: float
    shapes_in_api: int
    requests: dict[str, dict[str, int]]
    usage: tuple[ProcessUsage, ...]


class Latency(_Result, frozen=True):
    """Milliseconds from before a declaration's publish, for single resources one after another."""

    samples: int
    exists_p50_ms: float
    exists_p99_ms: float
    outcome_p50_ms: float
    outcome_p99_ms: float


class Replay(_Result, frozen=True):
    """The whole log read and folded, beside the ways to only read it; the best of some rounds."""

    events: int
    bytes_per_event: int
    rebuild_events_per_second: float
    follower_messages_per_second: float
    ordered_consumer_messages_per_second: float
    rebuild_share: float
    follower_share: float


class Ceiling(_Result, frozen=True):
    """The fastest that this client appends to this server: atomic batches, nothing else running."""

    batch: int
    bytes_per_event: int
    events_per_second: float
    converge_share: float


class Case(_Result, frozen=True):
    """Everything about one number of resources at one latency of the API."""

    shapes: int
    latency_ms: float
    load_average: float
    converge: Converge
    restart: Restart
    drift: Drift
    withdrawal: Withdrawal
    replay: Replay
    ceiling: Ceiling
    peaks: tuple[ProcessUsage, ...]
    stack_peak_mb: float
    idle: Latency | None = None


class Target(_Result, frozen=True):
    """A figure that was promised, and what was measured; ``is_fact``: it holds on any machine."""

    name: str
    wanted: str
    measured: str
    met: bool
    is_fact: bool = False


class Report(_Result, frozen=True):
    """One run."""

    started: str
    python: str
    server: str
    cores: int
    load_average_before: float
    load_average_after: float
    layout: str
    cases: tuple[Case, ...]
    targets: tuple[Target, ...]
