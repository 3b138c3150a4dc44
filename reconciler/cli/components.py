"""The systems that `up --with` can start on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from events.allow import NOTHING, ROOT, Allow
from reconciler.cli.errors import UsageError
from reconciler.cli.local_configs import LocalApi
from reconciler.provider.kind import installed_kinds
from reconciler.provider.lazy import LazyProvider, load

if TYPE_CHECKING:
    from infra.components import Component


@dataclass(frozen=True, slots=True)
class Offer:
    """A component that can be started, and the ProviderConfig of its name.

    ``implementation``: its class, imported only when it is started. ``endpoint_pattern``: the
    endpoints that `up` assigns; a configuration with another endpoint belongs to the user.
    ``allow``: the use of the host by the examples and pages of its kinds.
    """

    implementation: str
    endpoint_pattern: str
    least_resync_seconds: float | None = None
    allow: Allow = NOTHING


OFFERS: Final[Mapping[str, Offer]] = {
    "docker": Offer(
        "infra.components.docker_engine:DockerEngine",
        endpoint_pattern=r"unix://.*/docker/docker\.sock",
        least_resync_seconds=0.5,
        allow=Allow(users=(ROOT,), networks=("host",), binds=("/srv/monitoring/*/*",)),
    ),
    "postgres": Offer(
        "infra.components.postgres:Postgres",
        endpoint_pattern=r"postgresql://postgres@.*%2Fpostgres%2Fsocket:\d+/postgres",
    ),
    "caddy": Offer(
        "infra.components.caddy:Caddy",
        endpoint_pattern=r"unix://.*/caddy/admin\.sock",
        least_resync_seconds=0.5,
        allow=Allow(addresses=("127.0.0.1:*",), certificates=("/srv/tls/**",)),
    ),
    "certificates": Offer(
        "infra.components.certificates:Certificates",
        endpoint_pattern=r"file:///.*/certificates/root",
        allow=Allow(addresses=("127.0.0.1:*",), listen=("127.0.0.1:*",)),
    ),
}
"""By the name of the component, which is also that of its directory, ProviderConfig and
provider."""


BUS_APIS: Final[Mapping[str, Allow]] = {
    "composition": Allow(addresses=("file:///srv/git/*",)),
    "jetstream": NOTHING,
}
"""Names that start no component, because their API is the bus of `up`: composed kinds and streams.

The values are what the examples use of the host.
"""


def bus_api(name: str, nats_url: str) -> LocalApi:
    """Return the bus that `up` has started as an API for the ProviderConfig ``name``."""
    return LocalApi(name, name, nats_url, r"nats://127\.0\.0\.1:\d+", 0.5, BUS_APIS[name])


def parse_components(text: str) -> tuple[str, ...]:
    """Parse `docker,postgres`; raises ``UsageError``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*OFFERS, *BUS_APIS):
            known = ", ".join((*OFFERS, *BUS_APIS))
            raise UsageError(f"--with: {name!r} cannot be started; use {known}")
    return tuple(dict.fromkeys(names))


def create(name: str) -> Component:
    """Create a component without starting it.

    Raises:
        MissingExtraError: the extra of its kinds is not installed, so the roles cannot use it.
    """
    for kind in installed_kinds().of_provider(name):
        if isinstance(kind.connect, LazyProvider):
            load(kind.connect.target, extra=kind.extra)
    return load(OFFERS[name].implementation, extra=name)()


def local_api(name: str, component: Component) -> LocalApi:
    """Return the API of a running component, for its ProviderConfig."""
    offer = OFFERS[name]
    return LocalApi(
        name,
        name,
        component.endpoint,
        offer.endpoint_pattern,
        offer.least_resync_seconds,
        offer.allow,
    )
