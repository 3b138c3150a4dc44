"""Configurations: the kind ``ProviderConfig``, one external API and how to treat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from events.manifest import ApprovalLevel, ManifestStruct, Token
from events.names import PROVIDER_CONFIG_KIND, SYSTEM_NAMESPACE, ResourceKey

_PREFIX: Final = f"{SYSTEM_NAMESPACE}/{PROVIDER_CONFIG_KIND}/"

_PERCENT_COUNTS_FROM = 10  # objects: in smaller scopes the count alone guards

LEAST_SECONDS = 0.01
"""Shorter intervals make hot loops."""

MAX_SECONDS = 366 * 86_400
"""Longer ones are more than some timers can count."""

_Seconds = Annotated[float, msgspec.Meta(ge=LEAST_SECONDS, le=MAX_SECONDS)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


def config_key(name: str) -> ResourceKey:
    """Return the key of a configuration."""
    return ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, name)


def is_config(key: ResourceKey) -> bool:
    """Return whether a resource is a configuration."""
    return key.kind == PROVIDER_CONFIG_KIND


def config_name(resource: str) -> str | None:
    """Return the name of the configuration that ``namespace/kind/name`` is; None if it is none."""
    return resource.removeprefix(_PREFIX) if resource.startswith(_PREFIX) else None


def may_hold_a_secret(subject: str) -> bool:
    """Return whether a refused message was to be a configuration: that is where people put tokens.

    Of such a one only the reason is kept.
    """
    tokens = subject.split(".")
    return tokens[0] in ("in", "rec") and PROVIDER_CONFIG_KIND in tokens


class CredentialsRef(ManifestStruct, frozen=True):
    """Where the credentials are: an environment variable or a file. The secret stays there."""

    env: str | None = None
    file: str | None = None


class Tls(ManifestStruct, frozen=True):
    """TLS to an API: files where the worker and the observer run. Verification is always on.

    ``ca_file``: certificates of the authorities to trust, in the place of the system's.
    ``certificate_file`` and ``key_file``: who we are, where the API asks for a certificate.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


class Scope(ManifestStruct, frozen=True):
    """Which objects of the external API this configuration looks at, and whether all are ours."""

    mode: Literal["Shared", "Exclusive"] = "Shared"
    prefix: str | None = None
    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    namespace: Token = "default"

    def has(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether an object of this name and these labels is one of them."""
        return is_within(self.prefix, self.labels, name, labels)


def is_within(
    prefix: str | None, wanted: Mapping[str, str], name: str, labels: Mapping[str, str]
) -> bool:
    """Return whether an object has a scope's prefix, if there is one, and all of its labels."""
    return name.startswith(prefix or "") and wanted.items() <= labels.items()


Ownership = Literal["Log", "Prefix", "Label", "Union"]
"""Evidence that can establish ownership in addition to the log (docs/concepts/ownership.md)."""


class LossGuard(ManifestStruct, frozen=True):
    """When a listing that misses many of our objects is not believed before people are asked.

    Both must be reached: so many, and more than so many percent of all that is ours there. Such a
    listing is more likely of another API, or of an empty one, than the truth.
    """

    min_count: Annotated[int, msgspec.Meta(ge=1)] = 10
    max_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50


class DeletionGuard(ManifestStruct, frozen=True):
    """How many may go by one listing, definition or commit before people are asked.

    ``max_percent`` counts in scopes of ten objects and more.
    """

    max_count: Annotated[int, msgspec.Meta(ge=0)] = 10
    max_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 30

    def allows(self, count: int, total: int) -> bool:
        """Return whether so many of all may go without a question."""
        is_share_too_big = total >= _PERCENT_COUNTS_FROM and count * 100 > total * self.max_percent
        return count <= self.max_count and not is_share_too_big


class Retry(ManifestStruct, frozen=True):
    """Back-off between attempts, in seconds: doubled each time, with jitter."""

    initial_seconds: _Seconds = 1.0
    max_seconds: _Seconds = 300.0


class Limits(ManifestStruct, frozen=True):
    """What the external API may be asked at most.

    ``concurrency`` counts in each process. ``requests_per_second`` and ``burst`` hold for all
    processes together, and for all configurations of one API and account; without the first there
    is no such limit.
    """

    concurrency: _Count = 64
    request_timeout_seconds: _Seconds = 10.0
    page_size: _Count = 1000
    requests_per_second: Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)] | None = None
    burst: _Count = 1


class Breaker(ManifestStruct, frozen=True):
    """When an API that fails is left alone: after so many failures in a row.

    It stays open for ``initial_seconds``, doubled each time its probe fails, with jitter.
    """

    failures: _Count = 5
    initial_seconds: _Seconds = 2.0
    max_seconds: _Seconds = 300.0


class ProviderConfigSpec(ManifestStruct, frozen=True):
    """The spec of a ``ProviderConfig``: one external API, and how to treat it.

    ``resync_seconds`` is between two listings. Where the API tells of changes, its word brings the
    next one forward, but not nearer than ``least_resync_seconds``; if that is not less than the
    other, nobody asks the API for changes. ``approve``: which actions wait until people have
    approved them; a resource's own policy can only name more.
    """

    provider: str
    endpoint: str
    credentials_ref: CredentialsRef | None = None
    tls: Tls | None = None
    kinds: tuple[str, ...] = ()
    scope: Scope = Scope()
    ownership: Ownership = "Log"
    owner_prefix: str | None = None
    resync_seconds: _Seconds = 30.0
    least_resync_seconds: _Seconds = 5.0
    limits: Limits = Limits()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()
    deletion_guard: DeletionGuard = DeletionGuard()
    loss_guard: LossGuard = LossGuard()
    consistency_grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    approve: ApprovalLevel = "Never"
