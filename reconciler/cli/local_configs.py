"""The ProviderConfigs that `up` declares for what it has started: `default`, and components'."""

from __future__ import annotations

import asyncio
import re
import uuid

import msgspec
from nats.aio.client import Client

from events.allow import NOTHING, Allow
from events.intake import Declared
from events.log import SpecDeclared, SpecWithdrawn
from events.manifest import DEFAULT_PROVIDER_CONFIG, RECONCILER_API_VERSION, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, ProviderConfigSpec, config_key
from infra.bus.event_log import JetStreamLog, open_log
from reconciler.errors import WaitTimeoutError
from reconciler.ports import IntakeMessageOut
from reconciler.wiring import Running

_PATIENCE_SECONDS = 30.0


class LocalApi(msgspec.Struct, frozen=True):
    """An API that `up` has started: where it is, and which ProviderConfig shall say so.

    ``allow``: what of the host its resources may use in a new ProviderConfig.

    ``ours``: pattern of the endpoints that `up` declares. A configuration of another endpoint or
    provider is somebody's own, and stays.
    """

    config: str
    provider: str
    endpoint: str
    ours: str
    least_resync_seconds: float | None = None
    allow: Allow = NOTHING


def example_api(url: str) -> LocalApi:
    """Describe the example API."""
    return LocalApi(DEFAULT_PROVIDER_CONFIG, "shapes", url, r"http://127\.0\.0\.1:.*")


class Change(msgspec.Struct, frozen=True):
    """What must be declared before the roles run, if anything, and what there is to say."""

    config: str = DEFAULT_PROVIDER_CONFIG
    spec: ProviderConfigSpec | None = None
    before: SpecDeclared | None = None
    note: str = ""

    @property
    def is_correction(self) -> bool:
        """Whether the roles would start with a configuration that is wrong."""
        return self.spec is not None and self.before is not None


async def change_of_config(nc: Client, api: LocalApi, resync_seconds: float | None) -> Change:
    """Find out what an API's ProviderConfig must become to point at it."""
    name = api.config
    current = await _current(await open_log(nc), config_key(name))
    spec = _spec(current)
    is_ours = spec is None or (
        spec.provider == api.provider and re.fullmatch(api.ours, spec.endpoint) is not None
    )
    if spec is not None and not is_ours:
        where = f"points to {spec.endpoint} and was not changed"
        return Change(name, note=f"ProviderConfig {name} {where}")
    base = spec or _new(api)
    wanted = msgspec.structs.replace(
        base,
        endpoint=api.endpoint,
        resync_seconds=base.resync_seconds if resync_seconds is None else resync_seconds,
    )
    return Change(name) if wanted == spec else Change(name, wanted, current)


def _new(api: LocalApi) -> ProviderConfigSpec:
    spec = ProviderConfigSpec(api.provider, api.endpoint, allow=api.allow)
    if api.least_resync_seconds is None:
        return spec
    return msgspec.structs.replace(spec, least_resync_seconds=api.least_resync_seconds)


async def declare_config(parts: Running, change: Change, *, wait: bool) -> None:
    """Declare the changed configuration, and wait until this process knows it."""
    if change.spec is None:
        return
    key = config_key(change.config)
    await parts.intake.publish([_message(key, change.spec, change.before)])
    if wait:
        await _known(parts, key, change.spec)


async def _current(log: JetStreamLog, key: ResourceKey) -> SpecDeclared | None:
    loaded = (await log.load([key], use_cache=False))[key]
    for event in reversed(loaded.events):
        if isinstance(event.data, SpecDeclared):
            return event.data
        if isinstance(event.data, SpecWithdrawn):
            return None
    return None


def _spec(current: SpecDeclared | None) -> ProviderConfigSpec | None:
    if current is None:
        return None
    try:
        return msgspec.convert(current.fields, ProviderConfigSpec)
    except msgspec.ValidationError:  # of another release: replaced
        return None


def _message(
    key: ResourceKey, spec: ProviderConfigSpec, current: SpecDeclared | None
) -> IntakeMessageOut:
    metadata = Metadata(
        key.name,
        key.namespace,
        labels={} if current is None else current.labels,
        annotations={} if current is None else current.annotations,
    )
    fields = msgspec.to_builtins(spec, str_keys=True)
    manifest = Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
    return IntakeMessageOut("desired", key, Declared(manifest), uuid.uuid4().hex)


async def _known(parts: Running, key: ResourceKey, wanted: ProviderConfigSpec) -> None:
    """Wait until this process's own roles know the configuration."""
    changed = asyncio.Event()
    parts.configurations.listen(lambda _name: changed.set())
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while parts.configurations.by_name.get(key.name) != wanted:
                await changed.wait()
                changed.clear()
    except TimeoutError:
        raise WaitTimeoutError(
            f"{key}: no decider processed the declaration within {_PATIENCE_SECONDS:.0f} s"
        ) from None
