"""The results of one run, as they are written to JSON."""

from __future__ import annotations

import msgspec


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    """Base class of all results, which are written in camelCase."""


class ProcessUsage(_Result, frozen=True):
    """Usage of one process: CPU seconds in a phase, and peak memory (VmHWM) until its end."""

    process: str
    cpu_seconds: float
    peak_mb: float


class Converge(_Result, frozen=True):
    """All resources were declared in one batch.

    ``seconds``: from before the first publish until the last outcome Converged was received.
    ``exist_seconds``: until the API's journal had the last creation. ``declare_seconds``: until the
    bus had stored all declarations. ``requests``: the API's counts by method and status.
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
    """The reconciler was restarted without any change.

    ``settled_seconds``: from its start until its first listing was read and nothing was waiting.
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
    """A tenth of the objects were deleted directly in the API.

    Both times end when the API's journal had the last recreation. ``seconds`` begins with the last
    deletion, ``since_listing_seconds`` with the listing that detected the deletion (the longest
    time of all resources). ``other_effects``: writes other than the recreations.
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
    """All resources were withdrawn in one batch; the times are as in ``Converge``."""

    seconds: float
    shapes_per_second: float
    empty_seconds: float
    shapes_in_api: int
    requests: dict[str, dict[str, int]]
    usage: tuple[ProcessUsage, ...]


class Latency(_Result, frozen=True):
    """Milliseconds from publishing each declaration, one at a time."""

    samples: int
    exists_p50_ms: float
    exists_p99_ms: float
    outcome_p50_ms: float
    outcome_p99_ms: float


class Replay(_Result, frozen=True):
    """Speed of folding the whole log and of only reading it; the best of several rounds."""

    events: int
    bytes_per_event: int
    rebuild_events_per_second: float
    follower_messages_per_second: float
    ordered_consumer_messages_per_second: float
    rebuild_share: float
    follower_share: float


class Ceiling(_Result, frozen=True):
    """The maximum append rate of this client and server, with atomic batches and no other load."""

    batch: int
    bytes_per_event: int
    events_per_second: float
    converge_share: float


class Case(_Result, frozen=True):
    """All results for one number of resources at one API latency."""

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
    """A target and its measured value; ``is_fact`` targets must hold on any machine."""

    name: str
    wanted: str
    measured: str
    met: bool
    is_fact: bool = False


class Report(_Result, frozen=True):
    """The results of one run."""

    started: str
    python: str
    server: str
    cores: int
    load_average_before: float
    load_average_after: float
    layout: str
    cases: tuple[Case, ...]
    targets: tuple[Target, ...]
