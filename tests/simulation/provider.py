"""The client of the simulated API: it makes each call once and classifies every failure."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from events.secret import SecretRef
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.provider import Capabilities, Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import READY, Kind, Readiness
from reconciler.provider.secrets import Secrets
from tests.memory_bus.faults import OnRequest, RequestType
from tests.memory_bus.loop import current_process
from tests.memory_bus.network import Network
from tests.simulation.api import DATA, Api, RefusalError, StoredResponse
from tests.simulation.plan import ApiTraits, ListingFails
from tests.simulation.vault import hide_secrets, resolve_secrets

TIMEOUT_SECONDS = 2.0
_RETRY_AFTER_SECONDS = 3.0
_T = TypeVar("_T")


class _Read(NamedTuple):
    object: ExternalObject | None


_READ: ContextVar[_Read | None] = ContextVar("read", default=None)
"""The newest read of the current task."""


class ShapeFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of the simulated kind."""

    color: str
    size: dict[str, int] = {}
    note: str | SecretRef | None = None


class SimulatedProvider:
    """Implements ``reconciler.provider.Provider``."""

    def __init__(
        self, api: Api, network: Network, listing_faults: ListingFaults, seed: str, secrets: Secrets
    ) -> None:
        self._secrets = secrets
        self._api = api
        self._network = network
        self._listing_faults = listing_faults
        self._random = random.Random(f"{seed}/provider/{current_process().name}").random

    async def create(self, action: Action) -> Effect:
        if not self._api.traits.two_calls:
            effect = await self._write(action)
            return self._with_wrong_uid(effect) if self._api.traits.wrong_uids else effect
        effect = await self._start_call(action)
        partial_object = effect.object
        if partial_object is None:
            raise NotFoundError("it was deleted in the meantime", status=404)
        # From here on, the worker treats no failure as "nothing was done".
        CallPermit().record_write()
        return await self._paint_object(action, partial_object)

    def _with_wrong_uid(self, effect: Effect) -> Effect:
        if effect.object is None:
            return effect
        wrong = f"wrong-{effect.object.uid}"
        self._api.misnamed.add(wrong)
        return replace(effect, object=replace(effect.object, uid=wrong))

    async def _start_call(self, action: Action) -> Effect:
        """Make the first of two calls, or find the object that it created earlier."""
        try:
            return await self._write(action)
        except ConflictError as conflict:
            existing = conflict.obstacle
            if existing is None or existing.written_by != action.idempotency_key:
                raise
            return Effect(existing, replayed=True)

    async def _paint_object(self, action: Action, partial_object: ExternalObject) -> Effect:
        """Make the second call, unless the object is painted already."""
        if partial_object.fields.get("color") == action.fields.get("color"):
            return Effect(partial_object, replayed=True)
        await CallPermit().before_request()
        fields = await resolve_secrets(action, self._secrets)
        try:
            response, _ = await self._call(
                "write", lambda: self._api.paint(action, fields, partial_object), UnknownResultError
            )
        except RefusedError as error:
            raise RefusedError(
                error.message, status=error.status, obstacle=partial_object
            ) from error
        except ConflictError as conflict:
            existing = await self.read(action.external_name, partial_object.uid)
            if existing is None or existing.uid != partial_object.uid:
                raise NotFoundError(
                    "the created object was deleted in the meantime", status=404
                ) from conflict
            raise ConflictError(conflict.message, status=412, obstacle=existing) from conflict
        return _effect(response, replayed=False)

    async def update(self, action: Action) -> Effect:
        if not self._api.traits.conditional_writes:
            await self._read_before(action)
        return await self._write(action)

    async def delete(self, action: Action) -> Effect:
        self._check_reading(action)
        if not self._api.traits.conditional_writes:
            try:
                await self._read_before(action)
            except NotFoundError:
                return Effect(None, absent=True)
        return await self._write(action)

    def _check_reading(self, action: Action) -> None:
        """Report a deletion by a worker that has not read the data, or has read other data."""
        if not self._api.traits.data:
            return
        read = _READ.get()
        if read is None:
            self._api.unread_loss(f"{action.action_id} deletes an object that was not read")
        elif read.object is not None and read.object.uid == action.uid:
            loss = _describe_data_loss(None, read.object)
            if loss not in ("", action.data_loss):
                self._api.unread_loss(f"{action.action_id} deletes {loss}, which it does not name")

    async def _read_before(self, action: Action) -> None:
        """Read the object before a write that cannot be conditional."""
        existing = await self.read(action.external_name, action.uid)
        if existing is None:
            raise NotFoundError("it does not exist", status=404)
        if action.uid is not None and existing.uid != action.uid:
            raise ConflictError("it is a different object", status=409, obstacle=existing)

    async def _write(self, action: Action) -> Effect:
        version = action.version if self._api.traits.conditional_writes else None
        if action.idempotency_key in self._api.tried_keys:
            _refuse(self._network.strike("write again"), UnknownResultError)
        self._api.tried_keys.add(action.idempotency_key)
        fields = await resolve_secrets(action, self._secrets)
        try:
            response, replayed = await self._call(
                "write",
                lambda: self._api.write(action, fields, version=version),
                UnknownResultError,
            )
        except ConflictError as conflict:
            raise await self._with_obstacle(action, conflict) from conflict
        return _effect(response, replayed=replayed)

    async def _with_obstacle(self, action: Action, conflict: ConflictError) -> ProviderError:
        """Read the obstacle, which may have been deleted by now."""
        obstacle = await self.read(action.external_name, action.uid)
        if obstacle is None and conflict.status == 412:
            return NotFoundError("it no longer exists", status=412)
        return ConflictError(conflict.message, status=conflict.status, obstacle=obstacle)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        existing = await self._call(
            "read", lambda: self._api.read(external_name, uid), NotDoneError
        )
        shown = None if existing is None else hide_secrets(existing)
        _READ.set(_Read(shown))
        return shown

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        fault = self._listing_faults.next()
        after, number = "", 0
        while True:
            listing = await self._call("list", lambda after=after: self._page(after), NotDoneError)
            page = [each for _, each in listing]
            if fault is not None and fault.how == "half-way" and number == fault.index:
                raise NotDoneError("the connection was cut half-way")
            if fault is not None and fault.how == "leaves out":
                page = self._listing_faults.leave_out(page, fault, number)
            yield [each for each in page[:page_size] if scope.has(each.name, each.labels)]
            if len(listing) <= page_size:
                return
            after = listing[page_size - 1][0]
            number += 1

    def _page(self, after: str) -> list[tuple[str, ExternalObject]]:
        objects = self._api.list_objects(self._random() * self._api.traits.grace_seconds * 0.9)
        for slot in self._api.unlisted_slots() & objects.keys():
            self._listing_faults.hide(objects.pop(slot))
        return [(slot, hide_secrets(objects[slot])) for slot in sorted(objects) if slot > after]

    async def close(self) -> None: ...

    # --- one call

    async def _call(
        self, what: RequestType, operation: Callable[[], _T], no_response_error: type[ProviderError]
    ) -> _T:
        """Call the API once; ``no_response_error`` is raised on a timeout."""
        network = self._network
        fault = network.strike(what)
        await network.before(fault)
        _refuse(fault, no_response_error)
        response: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        request_seconds, response_seconds = network.latency(), network.latency()
        if fault is not None and fault.strike == "delay":
            request_seconds += fault.seconds
        is_lost = fault is not None and fault.strike == "lose request"

        def reply(result: _T | None, error: Exception | None) -> None:
            if response.done():
                return
            if error is not None:
                response.set_exception(error)
            else:
                response.set_result(result)  # pyright: ignore[reportArgumentType]

        def arrive() -> None:
            if is_lost:
                return
            if self._api.is_away:
                network.call_later(response_seconds, lambda: reply(None, NotDoneError("refused")))
                return
            try:
                result = operation()
            except RefusalError as refusal:
                error = _provider_error(refusal)
                network.call_later(response_seconds, lambda: reply(None, error))
                return
            if fault is not None and fault.strike == "break":
                broken = no_response_error("it failed after taking effect", status=500)
                network.call_later(response_seconds, lambda: reply(None, broken))
            elif fault is None or fault.strike != "lose reply":
                network.call_later(response_seconds, lambda: reply(result, None))

        network.call_later(request_seconds, arrive)
        network.after(fault)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await response
        except TimeoutError:
            raise no_response_error("no response in time") from None


class ListingFaults:
    """Incomplete listings: those still to come, and what past ones left out."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._armed: list[ListingFails] = []
        self.left_out: list[tuple[float, str]] = []
        self.report_count = 0

    def arm(self, fault: ListingFails) -> None:
        """Have the next listing fail."""
        self._armed.append(fault)

    def heal(self) -> None:
        """Let all listings succeed again."""
        self._armed.clear()

    def next(self) -> ListingFails | None:
        """Return the fault for the listing that is starting, and remove it."""
        if not self._armed:
            return None
        self.report_count += 1
        return self._armed.pop(0)

    def leave_out(
        self, page: Sequence[ExternalObject], fault: ListingFails, number: int
    ) -> list[ExternalObject]:
        """Hide one object of the first page."""
        if number or not page:
            return list(page)
        hidden = page[fault.index % len(page)]
        self.hide(hidden)
        return [each for each in page if each is not hidden]

    def hide(self, hidden: ExternalObject) -> None:
        """Record an object that a listing does not show."""
        self.left_out.append((self._time(), hidden.name))


def _effect(response: StoredResponse, *, replayed: bool) -> Effect:
    return Effect(None if response.object is None else hide_secrets(response.object), replayed)


def _refuse(fault: OnRequest | None, no_response_error: type[ProviderError]) -> None:
    """Refuse a call without an effect: only some refusals of a write prove that."""
    if fault is not None and fault.strike == "refuse":
        if round(fault.at * 1_000) % 2:
            raise NotDoneError("a dependency is missing", status=404)
        raise no_response_error("try again later", status=503)
    if fault is not None and fault.strike == "throttle":
        raise ThrottledError("too many calls", status=429, retry_after_seconds=_RETRY_AFTER_SECONDS)


def _provider_error(refusal: RefusalError) -> ProviderError:
    message, status = str(refusal), refusal.status
    if status == 404:
        return NotFoundError(message, status=status)
    if status == 422:
        return RefusedError(message, status=status)
    return ConflictError(message, status=status)


def simulated_kind(api: Api, network: Network, listing_faults: ListingFaults, seed: str) -> Kind:
    """Return the kind whose provider uses the simulated API."""

    def connect(config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> Provider:
        assert secrets.credential is None
        assert config.provider == "simulated"
        return SimulatedProvider(api, network, listing_faults, seed, secrets)

    kind = Kind(
        name="Base" if api.traits.defined else "Shape",
        api_version="sim/v1",
        provider="base" if api.traits.defined else "simulated",
        schema=ShapeFields,
        capabilities=_capabilities(api.traits),
        connect=connect,
        normalize=_normalize,
        ready=_ready,
        immutable=frozenset({"size"} if api.traits.replaces else ()),
        has_second_name=api.traits.replaces == "beside",
    )
    if api.traits.data:
        kind = dataclasses.replace(kind, describe_data_loss=_describe_data_loss)
    return (
        dataclasses.replace(kind, renewal_time=_renewal_time)
        if api.traits.lifetime_seconds
        else kind
    )


def _capabilities(traits: ApiTraits) -> Capabilities:
    return Capabilities(
        idempotency_keys=traits.idempotency_keys,
        deterministic_names=traits.names,
        labels=traits.labels,
        conditional_writes=traits.conditional_writes,
        listing=traits.listing,
    )


def _ready(_fields: Fields, observed_object: ExternalObject) -> Readiness:
    return Readiness(False, "Starting") if observed_object.outputs.get("starting") else READY


def _renewal_time(_fields: Fields, observed_object: ExternalObject) -> datetime | None:
    expires = observed_object.outputs.get("expires")  # objects created by people never expire
    return None if expires is None else datetime.fromisoformat(expires)


def _describe_data_loss(fields: Fields | None, observed_object: ExternalObject) -> str:
    data = observed_object.outputs.get(DATA)
    return f"data {data} of {observed_object.name}" if fields is None and data else ""


def _normalize(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}
