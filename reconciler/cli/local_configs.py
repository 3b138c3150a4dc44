"""The ProviderConfigs that `up` declares for the APIs and components that it starts."""

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
from reconciler.wiring import ProcessParts

_TIMEOUT_SECONDS = 30.0


class LocalApi(msgspec.Struct, frozen=True):
    """An API that `up` has started, and the ProviderConfig for it.

    ``allow``: the access to this host that a new ProviderConfig permits. ``endpoint_pattern``: the
    endpoints that `up` declares. A configuration with a different endpoint or provider belongs to
    the user and stays unchanged.
    """

    config: str
    provider: str
    endpoint: str
    endpoint_pattern: str
    min_resync_seconds: float | None = None
    allow: Allow = NOTHING


def build_example_api(url: str) -> LocalApi:
    """Return the example API."""
    return LocalApi(DEFAULT_PROVIDER_CONFIG, "shapes", url, r"http://127\.0\.0\.1:.*")


class ConfigChange(msgspec.Struct, frozen=True):
    """The declaration that an API requires, if any, and a note for the user."""

    config: str = DEFAULT_PROVIDER_CONFIG
    spec: ProviderConfigSpec | None = None
    current: SpecDeclared | None = None
    note: str = ""

    @property
    def is_correction(self) -> bool:
        """Whether it corrects an existing declaration, which must happen before the roles start."""
        return self.spec is not None and self.current is not None


async def plan_config_change(
    nc: Client, api: LocalApi, resync_seconds: float | None
) -> ConfigChange:
    """Return the change that makes a ProviderConfig point to its API."""
    name = api.config
    current = await _read_declaration(await open_log(nc), config_key(name))
    spec = _decode_spec(current)
    is_managed = spec is None or (
        spec.provider == api.provider
        and re.fullmatch(api.endpoint_pattern, spec.endpoint) is not None
    )
    if spec is not None and not is_managed:
        text = f"points to {spec.endpoint} and was not changed"
        return ConfigChange(name, note=f"ProviderConfig {name} {text}")
    base = spec or _build_spec(api)
    new_spec = msgspec.structs.replace(
        base,
        endpoint=api.endpoint,
        resync_seconds=base.resync_seconds if resync_seconds is None else resync_seconds,
    )
    return ConfigChange(name) if new_spec == spec else ConfigChange(name, new_spec, current)


def _build_spec(api: LocalApi) -> ProviderConfigSpec:
    spec = ProviderConfigSpec(api.provider, api.endpoint, allow=api.allow)
    if api.min_resync_seconds is None:
        return spec
    return msgspec.structs.replace(spec, least_resync_seconds=api.min_resync_seconds)


async def declare_config(parts: ProcessParts, change: ConfigChange, *, wait: bool) -> None:
    """Declare the changed configuration, and wait until this process has read it."""
    if change.spec is None:
        return
    key = config_key(change.config)
    await parts.intake.publish([_build_message(key, change.spec, change.current)])
    if wait:
        await _wait_until_read(parts, key, change.spec)


async def _read_declaration(log: JetStreamLog, key: ResourceKey) -> SpecDeclared | None:
    loaded = (await log.load([key], use_cache=False))[key]
    for event in reversed(loaded.events):
        if isinstance(event.data, SpecDeclared):
            return event.data
        if isinstance(event.data, SpecWithdrawn):
            return None
    return None


def _decode_spec(current: SpecDeclared | None) -> ProviderConfigSpec | None:
    if current is None:
        return None
    try:
        return msgspec.convert(current.fields, ProviderConfigSpec)
    except msgspec.ValidationError:  # written by a different release; replace it
        return None


def _build_message(
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


async def _wait_until_read(parts: ProcessParts, key: ResourceKey, spec: ProviderConfigSpec) -> None:
    """Wait until this process's roles have read the configuration."""
    changed = asyncio.Event()
    parts.configurations.listen(lambda _name: changed.set())
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            configs = parts.configurations
            while configs.by_name.get(key.name) != spec or key.name in configs.withdrawn:
                await changed.wait()
                changed.clear()
    except TimeoutError:
        raise WaitTimeoutError(
            f"{key}: no decider processed the declaration within {_TIMEOUT_SECONDS:.0f} s"
        ) from None
