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
class ComponentSpec:
    """A component that `up` can start, and settings for the ProviderConfig of the same name.

    ``implementation``: the component's class, imported only when it starts. ``endpoint_pattern``:
    the endpoints that `up` assigns; a configuration with a different endpoint belongs to the user.
    ``allow``: the access to this host that the documented examples need.
    """

    implementation: str
    endpoint_pattern: str
    min_resync_seconds: float | None = None
    allow: Allow = NOTHING


COMPONENTS: Final[Mapping[str, ComponentSpec]] = {
    "docker": ComponentSpec(
        "infra.components.docker_engine:DockerEngine",
        endpoint_pattern=r"unix://.*/docker/docker\.sock",
        min_resync_seconds=0.5,
        allow=Allow(users=(ROOT,), networks=("host",), binds=("/srv/monitoring/*/*",)),
    ),
    "postgres": ComponentSpec(
        "infra.components.postgres:Postgres",
        endpoint_pattern=r"postgresql://postgres@.*%2Fpostgres%2Fsocket:\d+/postgres",
    ),
    "caddy": ComponentSpec(
        "infra.components.caddy:Caddy",
        endpoint_pattern=r"unix://.*/caddy/admin\.sock",
        min_resync_seconds=0.5,
        allow=Allow(addresses=("127.0.0.1:*",), certificates=("/srv/tls/**",)),
    ),
    "certificates": ComponentSpec(
        "infra.components.certificates:Certificates",
        endpoint_pattern=r"file:///.*/certificates/root",
        allow=Allow(addresses=("127.0.0.1:*",), listen=("127.0.0.1:*",)),
    ),
}
"""Specs by name. The component's directory, ProviderConfig and provider have the same name."""


BUS_APIS: Final[Mapping[str, Allow]] = {
    "composition": Allow(addresses=("file:///srv/git/*",)),
    "jetstream": NOTHING,
}
"""Names that need no component, because their API is the bus of `up`: composed kinds and streams.

The values permit the host access that the examples need.
"""


def build_bus_api(name: str, nats_url: str) -> LocalApi:
    """Return the bus of `up` as the API for the ProviderConfig named ``name``."""
    return LocalApi(name, name, nats_url, r"nats://127\.0\.0\.1:\d+", 0.5, BUS_APIS[name])


def parse_components(text: str) -> tuple[str, ...]:
    """Parse `docker,postgres`; raises ``UsageError``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*COMPONENTS, *BUS_APIS):
            known = ", ".join((*COMPONENTS, *BUS_APIS))
            raise UsageError(f"--with: {name!r} cannot be started; use {known}")
    return tuple(dict.fromkeys(names))


def create_component(name: str) -> Component:
    """Create a component without starting it.

    Raises:
        MissingExtraError: the roles cannot use it, because its kinds' extra is not installed.
    """
    for kind in installed_kinds().of_provider(name):
        if isinstance(kind.connect, LazyProvider):
            load(kind.connect.target, extra=kind.extra)
    return load(COMPONENTS[name].implementation, extra=name)()


def build_local_api(name: str, component: Component) -> LocalApi:
    """Return the API of a running component, for its ProviderConfig."""
    spec = COMPONENTS[name]
    return LocalApi(
        name,
        name,
        component.endpoint,
        spec.endpoint_pattern,
        spec.min_resync_seconds,
        spec.allow,
    )
