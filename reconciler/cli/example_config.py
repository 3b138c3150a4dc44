"""The ProviderConfig `default`, which `up` declares for the API that it has started."""

from __future__ import annotations

import asyncio
import uuid

import msgspec
from nats.aio.client import Client

from events.intake import Declared
from events.log import SpecDeclared, SpecWithdrawn
from events.manifest import DEFAULT_PROVIDER_CONFIG, RECONCILER_API_VERSION, Manifest, Metadata
from events.provider_config import PROVIDER_CONFIG_KIND, ProviderConfigSpec, config_key
from infra.bus.event_log import JetStreamLog, open_log
from reconciler.errors import WaitTimeoutError
from reconciler.ports import IntakeMessageOut
from reconciler.wiring import Running

KEY = config_key(DEFAULT_PROVIDER_CONFIG)
_LOCAL = "http://127.0.0.1:"
_PATIENCE_SECONDS = 30.0


class Change(msgspec.Struct, frozen=True):
    """What must be declared before the roles run, if anything, and what there is to say."""

    spec: ProviderConfigSpec | None = None
    before: SpecDeclared | None = None
    note: str = ""

    @property
    def is_correction(self) -> bool:
        """Whether the roles would start with a configuration that is wrong."""
        return self.spec is not None and self.before is not None


async def change_of_config(nc: Client, api_url: str, resync_seconds: float | None) -> Change:
    """Find out what ProviderConfig `default` must become to point at the API.

    A configuration that points to another machine is somebody's own, and stays.
    """
    current = await _current(await open_log(nc))
    spec = _spec(current)
    if spec is not None and not (spec.provider == "shapes" and spec.endpoint.startswith(_LOCAL)):
        return Change(note=f"ProviderConfig default points to {spec.endpoint}, and was left as is")
    base = spec or ProviderConfigSpec("shapes", api_url)
    wanted = msgspec.structs.replace(
        base,
        endpoint=api_url,
        resync_seconds=base.resync_seconds if resync_seconds is None else resync_seconds,
    )
    return Change() if wanted == spec else Change(wanted, current)


async def declare_config(parts: Running, change: Change, *, wait: bool) -> None:
    """Declare the changed configuration, and wait until this process knows it."""
    if change.spec is None:
        return
    await parts.intake.publish([_message(change.spec, change.before)])
    if wait:
        await _known(parts, change.spec)


async def _current(log: JetStreamLog) -> SpecDeclared | None:
    loaded = (await log.load([KEY], use_cache=False))[KEY]
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


def _message(spec: ProviderConfigSpec, current: SpecDeclared | None) -> IntakeMessageOut:
    metadata = Metadata(
        KEY.name,
        KEY.namespace,
        labels={} if current is None else current.labels,
        annotations={} if current is None else current.annotations,
    )
    fields = msgspec.to_builtins(spec, str_keys=True)
    manifest = Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
    return IntakeMessageOut("desired", KEY, Declared(manifest), uuid.uuid4().hex)


async def _known(parts: Running, wanted: ProviderConfigSpec) -> None:
    """Wait until this process's own roles know the configuration."""
    changed = asyncio.Event()
    parts.configurations.listen(lambda _name: changed.set())
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while parts.configurations.by_name.get(KEY.name) != wanted:
                await changed.wait()
                changed.clear()
    except TimeoutError:
        raise WaitTimeoutError(
            f"{KEY} was declared, but no decider took it in within {_PATIENCE_SECONDS:.0f} s"
        ) from None
