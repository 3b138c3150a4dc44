"""The ``ProviderConfig`` kind: the connection to one external API, with its policies and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from events.allow import NOTHING, Allow, matches
from events.manifest import ApprovalLevel, ManifestStruct, Token
from events.names import PROVIDER_CONFIG_KIND, SYSTEM_NAMESPACE, ResourceKey

_PREFIX: Final = f"{SYSTEM_NAMESPACE}/{PROVIDER_CONFIG_KIND}/"

_MIN_OBJECTS_FOR_PERCENT = 10  # in smaller scopes, only the count applies

MIN_SECONDS = 0.01
"""Minimum interval, in seconds. Shorter intervals cause hot loops."""

MAX_SECONDS = 366 * 86_400
"""Maximum interval, in seconds. Some timers cannot measure longer intervals."""

MAX_OBJECTS = 1_000_000_000
"""Maximum number of objects. No API has more, so a guard with this number never holds."""

_Seconds = Annotated[float, msgspec.Meta(ge=MIN_SECONDS, le=MAX_SECONDS)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
NamespacePattern = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_*-]{1,63}(?!\n)$")]


def config_key(name: str) -> ResourceKey:
    """Return the key of a ProviderConfig."""
    return ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, name)


def is_config(key: ResourceKey) -> bool:
    """Return whether a resource is a ProviderConfig."""
    return key.kind == PROVIDER_CONFIG_KIND


def config_name(resource: str) -> str | None:
    """Return the name of a ProviderConfig from ``namespace/kind/name``; None for other kinds."""
    return resource.removeprefix(_PREFIX) if resource.startswith(_PREFIX) else None


def may_contain_secret(subject: str) -> bool:
    """Return whether a rejected message may contain a secret, because it concerns a ProviderConfig.

    Users sometimes put tokens there. The dead letter of such a message contains only the reason.
    """
    tokens = subject.split(".")
    return tokens[0] in ("in", "rec") and PROVIDER_CONFIG_KIND in tokens


class CredentialsRef(ManifestStruct, frozen=True):
    """Location of the credentials: an environment variable or a file.

    The log never contains them.
    """

    env: Annotated[
        str | None, msgspec.Meta(description="Environment variable of the worker and the observer.")
    ] = None
    file: Annotated[
        str | None,
        msgspec.Meta(description="Path to a file on the machines of the workers and observers."),
    ] = None


class Tls(ManifestStruct, frozen=True):
    """TLS files where the worker and the observer run. Verification is always on.

    ``ca_file``: CAs to trust instead of the system's. ``certificate_file`` and ``key_file``: the
    client certificate, if the API requires one.
    """

    ca_file: Annotated[
        str | None,
        msgspec.Meta(
            description="Path to the CA certificates (PEM) to trust instead of the system's."
        ),
    ] = None
    certificate_file: Annotated[
        str | None,
        msgspec.Meta(description="Path to the client certificate (PEM), if the API requires one."),
    ] = None
    key_file: Annotated[
        str | None,
        msgspec.Meta(description="Path to the private key (PEM) for the client certificate."),
    ] = None


class Scope(ManifestStruct, frozen=True):
    """Objects of the external API that a ProviderConfig covers, and their mode."""

    mode: Annotated[
        Literal["Shared", "Exclusive"],
        msgspec.Meta(
            description="Shared: Reconciler leaves undeclared objects alone. Exclusive: it "
            "deletes them, within the limits of the deletion guard."
        ),
    ] = "Shared"
    prefix: Annotated[
        str | None,
        msgspec.Meta(description="Name prefix of the objects in scope. Default: all names."),
    ] = None
    labels: Annotated[
        dict[str, str],
        msgspec.Meta(description="Labels of the objects in scope. Default: any labels."),
    ] = {}  # noqa: RUF012 - msgspec copies it
    namespace: Annotated[
        Token, msgspec.Meta(description="Namespace in which undeclared objects are shown.")
    ] = "default"

    def has(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether an object with this name and these labels is in scope."""
        return is_within(self.prefix, self.labels, name, labels)


def is_within(
    prefix: str | None, wanted: Mapping[str, str], name: str, labels: Mapping[str, str]
) -> bool:
    """Return whether an object matches the prefix and the labels of a scope."""
    return name.startswith(prefix or "") and wanted.items() <= labels.items()


Ownership = Literal["Log", "Prefix", "Label", "Strict"]
"""Evidence that can establish ownership in addition to the log (docs/concepts/ownership.md)."""


class LossGuard(ManifestStruct, frozen=True):
    """Limits beyond which a listing is not trusted, because too many owned objects are missing.

    The guard applies if both limits are exceeded. Such a listing probably comes from a different or
    empty API. It does not apply if the listing is proven to come from the right API, unless
    ``max_percent`` is 0: an operator then decides about each loss.
    """

    min_count: Annotated[
        int,
        msgspec.Meta(ge=1, le=MAX_OBJECTS, description="Minimum number of missing objects."),
    ] = 10
    max_percent: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=100, description="Maximum percentage of missing objects in a trusted listing."
        ),
    ] = 50

    def doubts(self, missing: int, owned: int, *, explained: bool = False) -> bool:
        """Return whether a listing without ``missing`` of the ``owned`` objects is not trusted.

        ``explained``: the listing is proven to come from the right API.
        """
        if explained and self.max_percent > 0:
            return False
        return missing >= self.min_count and missing * 100 > owned * self.max_percent


class DeletionGuard(ManifestStruct, frozen=True):
    """Limits on the objects that one listing, definition or commit may delete without approval.

    ``max_percent`` applies to scopes of ten or more objects.
    """

    max_count: Annotated[
        int, msgspec.Meta(ge=0, le=MAX_OBJECTS, description="Maximum number of objects.")
    ] = 10
    max_percent: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=100,
            description="Maximum percentage of the objects, in scopes of 10 objects or more.",
        ),
    ] = 30

    def allows(self, count: int, total: int) -> bool:
        """Return whether ``count`` of ``total`` objects may be deleted without approval."""
        exceeds_percent = (
            total >= _MIN_OBJECTS_FOR_PERCENT and count * 100 > total * self.max_percent
        )
        return count <= self.max_count and not exceeds_percent


class Retry(ManifestStruct, frozen=True):
    """Backoff between attempts, in seconds, which grows by a factor of two, with jitter."""

    initial_seconds: Annotated[
        _Seconds,
        msgspec.Meta(
            description="Delay before the first retry, in seconds. It doubles after each attempt, "
            "with jitter."
        ),
    ] = 1.0
    max_seconds: Annotated[_Seconds, msgspec.Meta(description="Maximum delay, in seconds.")] = 300.0


class Limits(ManifestStruct, frozen=True):
    """Limits for calls to the external API.

    ``concurrency`` applies to each process. ``requests_per_second`` and ``burst`` apply to all
    processes together, and to all configurations of one API and account. By default, requests are
    not limited.
    """

    concurrency: Annotated[
        _Count, msgspec.Meta(description="Maximum number of concurrent calls in each process.")
    ] = 64
    request_timeout_seconds: Annotated[
        _Seconds, msgspec.Meta(description="Timeout for a call including its response, in seconds.")
    ] = 10.0
    page_size: Annotated[
        _Count, msgspec.Meta(description="Number of objects per page of a listing.")
    ] = 1000
    requests_per_second: Annotated[
        Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)] | None,
        msgspec.Meta(
            description="Maximum number of requests per second by all processes combined. It "
            "also covers every other ProviderConfig for the same API and account. "
            "Default: no limit."
        ),
    ] = None
    burst: Annotated[
        _Count,
        msgspec.Meta(
            description="Number of requests that may be sent immediately, before the rate applies."
        ),
    ] = 1


class Breaker(ManifestStruct, frozen=True):
    """Circuit breaker: stops calls to an API after consecutive failures.

    It stays open for ``initial_seconds``. The time doubles whenever the probe fails, with jitter.
    """

    failures: Annotated[
        _Count, msgspec.Meta(description="Number of consecutive failures that opens the breaker.")
    ] = 5
    initial_seconds: Annotated[
        _Seconds,
        msgspec.Meta(
            description="Seconds that the breaker stays open at first. The time doubles after each "
            "failed probe, with jitter."
        ),
    ] = 2.0
    max_seconds: Annotated[
        _Seconds, msgspec.Meta(description="Maximum time that the breaker stays open, in seconds.")
    ] = 300.0


class ProviderConfigSpec(ManifestStruct, frozen=True):
    """The connection to one external API."""

    provider: Annotated[
        str, msgspec.Meta(description="API family. It selects the client that Reconciler uses.")
    ]
    endpoint: Annotated[
        str, msgspec.Meta(description="Address of the API. Its form depends on the provider.")
    ]
    credentials_ref: Annotated[
        CredentialsRef | None,
        msgspec.Meta(
            description="Where to read the credentials. Declare env or file. The log never "
            "contains them."
        ),
    ] = None
    tls: Annotated[
        Tls | None,
        msgspec.Meta(
            description="TLS files on the machines where the worker and the observer run. "
            "Certificates are always verified."
        ),
    ] = None
    kinds: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Kinds that the observer lists. Default: all kinds of the provider."
        ),
    ] = ()
    scope: Annotated[
        Scope, msgspec.Meta(description="Objects of the API that this ProviderConfig covers.")
    ] = Scope()
    ownership: Annotated[
        Ownership,
        msgspec.Meta(
            description="Evidence that establishes ownership. Log: only the log. Prefix: the log "
            "or the name. Label: the log or the owner label. Strict: only the log, and "
            "contradictory evidence makes an object disputed."
        ),
    ] = "Log"
    owner_prefix: Annotated[
        str | None,
        msgspec.Meta(description="Name prefix of your objects, if ownership is Prefix or Strict."),
    ] = None
    resync_seconds: Annotated[
        _Seconds,
        msgspec.Meta(description="Seconds between listings, with 10 percent jitter."),
    ] = 30.0
    least_resync_seconds: Annotated[
        _Seconds,
        msgspec.Meta(
            description="Minimum time between listings when the API reports changes, in "
            "seconds. If it is not less than resyncSeconds, Reconciler does not follow "
            "those reports."
        ),
    ] = 5.0
    namespaces: Annotated[
        tuple[NamespacePattern, ...],
        msgspec.Meta(
            description="Namespaces whose resources may use this ProviderConfig. * matches any "
            "characters. The system namespace is always permitted. Default: all."
        ),
    ] = ("*",)
    allow: Annotated[
        Allow,
        msgspec.Meta(
            description="Parts of the host that resources may use, as lists of patterns. * matches "
            "within a path segment, and ** matches anything. Default: nothing."
        ),
    ] = NOTHING
    limits: Annotated[Limits, msgspec.Meta(description="Limits for calls.")] = Limits()
    retry: Annotated[
        Retry, msgspec.Meta(description="Delay between the attempts of an action.")
    ] = Retry()
    breaker: Annotated[Breaker, msgspec.Meta(description="Circuit breaker for a failing API.")] = (
        Breaker()
    )
    deletion_guard: Annotated[
        DeletionGuard,
        msgspec.Meta(
            description="Limits on the undeclared objects that Reconciler deletes after one "
            "listing, the objects that a changed KindDefinition replaces, and the resources that "
            "one commit withdraws. If their number exceeds a limit, they are Held."
        ),
    ] = DeletionGuard()
    loss_guard: Annotated[
        LossGuard,
        msgspec.Meta(
            description="If a listing lacks at least minCount of your objects, and more than "
            "maxPercent percent of them, Reconciler does not treat them as deleted, and their "
            "resources are Held. Unless maxPercent is 0, this does not apply after a restart of "
            "an API whose objects end with its process."
        ),
    ] = LossGuard()
    consistency_grace_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=MAX_SECONDS,
            description="Seconds that may pass before the API's listings show an effect.",
        ),
    ] = 0.0
    approve: Annotated[
        ApprovalLevel,
        msgspec.Meta(
            description="Actions that need approval. Deletions: deletions and "
            "replacements. Always: all."
        ),
    ] = "Never"

    @property
    def deletes_undeclared(self) -> bool:
        """Whether the scope or the name alone can make undeclared objects subject to deletion."""
        is_exclusive = self.scope.mode == "Exclusive" and self.ownership != "Strict"
        return is_exclusive or (self.ownership == "Prefix" and self.owner_prefix is not None)

    @property
    def deletion_scope(self) -> tuple[object, ...] | None:
        """The settings that determine which undeclared objects are deleted; None if none are."""
        if not self.deletes_undeclared:
            return None
        scope, owner_prefix = self.scope, self.owner_prefix if self.ownership == "Prefix" else None
        location = (self.provider, self.endpoint, scope.prefix, scope.labels)
        return (*location, scope.mode, self.ownership, owner_prefix)

    def may_be_used_in(self, namespace: str) -> bool:
        """Return whether resources of a namespace may use this configuration."""
        if namespace == SYSTEM_NAMESPACE or "*" in self.namespaces:  # the default, and faster
            return True
        return matches(namespace, self.namespaces)
