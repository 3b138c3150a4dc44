"""The provider of ``Service``: each write is one transaction of nft, on what was read before it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Final

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.nftables import base
from infra.providers.nftables.listed import (
    MASQUERADED,
    SERVICES,
    Element,
    Listed,
    found_element,
    listed,
)
from infra.providers.nftables.monitor import Monitor
from infra.providers.nftables.nft import Command, MissingError, Nft, TakenError
from infra.providers.nftables.place import FAMILY, place_of
from infra.providers.nftables.rules import (
    Seen,
    all_seen,
    chain_of,
    deleted,
    front_of_fields,
    leading_element,
    mark_of,
    name_of,
    seen_in,
    target_text,
    written,
)
from infra.providers.nftables.spec import Front, name_problem, normalize
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.named_objects import check_uid
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, namespace_of

_NOT_A_NAME: Final = "syntax error"


class ServicesProvider:
    """Writes services into a table, each into a chain and an element of its own."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # nftables asks the kernel who we are
        self._place = place_of(config.endpoint)
        self._table = self._place.table
        timeout = config.limits.request_timeout_seconds
        self.nft = Nft(self._place, timeout, permit)
        self._monitor = Monitor(self.nft, timeout)
        # The kernel does one transaction at a time anyway, and what services share is made once.
        self._writing = asyncio.Lock()

    async def create(self, action: Action) -> Effect:
        """Make a service where nothing is; our own earlier attempt counts as the first answer."""
        _check_name(action)
        began = time.monotonic()
        seen = await self._look(action.external_name, action.fields)
        if seen is not None and not seen.is_nothing:
            return _own_or_refused(action, seen.as_object())
        made = f"service-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"
        commands = written(self._table, action, made, seen)
        try:
            await self._apply(commands, read_at=began, is_suspect=seen is not None)
        except TakenError as error:
            found = await self.read(action.external_name)
            if found is not None:
                return _own_or_refused(action, found)
            raise await self._front_taken(action, error) from error
        return await self._done(action)

    async def update(self, action: Action) -> Effect:
        """Replace what is there of a service, if it is still the action's at its version."""
        _check_name(action)
        began = time.monotonic()
        seen = await self._look(action.external_name, action.fields)
        if seen is None or seen.is_nothing:
            raise NotFoundError(f"service {action.external_name!r} does not exist")
        found = seen.as_object()
        check_uid(found, action)
        if found.written_by == action.idempotency_key:
            return Effect(found, replayed=True)
        if action.version not in (None, found.version):
            raise ConflictError(f"{found.name!r} has changed since it was read", obstacle=found)
        assert found.uid is not None
        commands = written(self._table, action, found.uid, seen)
        # Where the service itself is as it shall be, or all rules are gone, more must be wrong.
        is_as_wanted = normalize(found.fields) == normalize(action.fields)
        is_suspect = seen.mark is None or (is_as_wanted and found.labels == action.labels)
        try:
            await self._apply(commands, read_at=began, is_suspect=is_suspect)
        except MissingError as error:
            raise await self._changed(action, error) from error
        except TakenError as error:
            raise await self._front_taken(action, error) from error
        return await self._done(action)

    async def delete(self, action: Action) -> Effect:
        """Delete a service that is still the action's, whatever its version."""
        _check_name(action)
        began = time.monotonic()
        seen = await self._look(action.external_name)
        if seen is None or seen.is_nothing:
            return Effect(None, absent=True)
        check_uid(seen.as_object(), action)
        try:
            async with self._writing:
                await self.nft.apply(deleted(self._table, seen), read_at=began)
        except MissingError as error:
            changed = await self._changed(action, error)
            if isinstance(changed, NotFoundError):
                return Effect(None, absent=True)
            raise changed from error
        return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one service."""
        del uid  # names are unique
        problem = name_problem(external_name)
        if problem is not None:
            raise RefusedError(f"invalid name {external_name!r}: {problem}")
        seen = await self._look(external_name)
        return None if seen is None or seen.is_nothing else seen.as_object()

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the services of a table, which nft shows at once; without a table there is none."""
        answer = await self._shown_table()
        if answer is None:
            return
        objects = await asyncio.to_thread(self._objects, answer)
        wanted = [each for each in objects if scope.has(each.name, each.labels)]
        for start in range(0, len(wanted), page_size):
            yield wanted[start : start + page_size]

    async def changes(self, after: str | None) -> str:
        """Wait for the next event of the table."""
        return await self._monitor.changes(after)

    async def close(self) -> None:
        """End the process that follows events."""
        await self._monitor.close()

    # --- reading

    async def _look(self, name: str, wanted: Fields | None = None) -> Seen | None:
        """Read what is there of a service; None if it has no chain.

        ``wanted``: fields that say where it is reached, if it cannot say so itself.
        """
        chain = chain_of(name)
        try:
            shown = listed(await self.nft.show("chain", chain))
        except MissingError:
            return None
        mark = mark_of(shown.rules.get(chain, []))
        front = None if wanted is None else front_of_fields(wanted)
        if mark is not None:
            front = mark.front
        element, is_masqueraded = await self._led_by(front) if front else (None, False)
        if element is not None and element.target != chain:
            element = None
        if element is None and mark is None:
            element = await self._leading_to(chain)
            if element is not None and element.front != front:
                _, is_masqueraded = await self._led_by(element.front)
        if element is None and mark is None:
            is_masqueraded = False  # nothing says that this front is its own
        return seen_in(shown, name, element, is_masqueraded=is_masqueraded)

    async def _led_by(self, front: Front) -> tuple[Element | None, bool]:
        """Return the element of a front, and whether the front is masqueraded."""
        key = f"{{ {front.address} . {front.protocol} . {front.port} }}"
        asked = [f"get element {FAMILY} {self._table} {of} {key}" for of in (SERVICES, MASQUERADED)]
        try:
            return found_element(await self.nft.ask("\n".join(asked)), front), True
        except MissingError:  # one of them, or both
            pass
        answers: list[str | None] = []
        for each in asked:
            try:
                answers.append(await self.nft.ask(each))
            except MissingError:
                answers.append(None)
        leads, masqueraded = answers
        return None if leads is None else found_element(leads, front), masqueraded is not None

    async def _leading_to(self, chain: str) -> Element | None:
        """Look through all elements for one that leads to a chain without a mark."""
        try:
            shown = await self.nft.show("map", SERVICES)
        except MissingError:
            return None
        found = await asyncio.to_thread(listed, shown)
        return leading_element(None, [each for each in found.elements if each.target == chain])

    async def _shown_table(self) -> bytes | None:
        try:
            return await self.nft.show("table")
        except MissingError:
            return None

    def _objects(self, answer: bytes) -> list[ExternalObject]:
        shown = listed(answer)
        is_reached = base.is_sound(self._place, shown)
        return [each.as_object(is_reached=is_reached) for each in all_seen(shown)]

    # --- writing

    async def _apply(self, commands: list[Command], *, read_at: float, is_suspect: bool) -> None:
        """Do a transaction; what services share is mended with it where it may be missing."""
        async with self._writing:
            mended = await self._mended_chains() if is_suspect else []
            try:
                await self.nft.apply([*mended, *commands], read_at=read_at)
            except MissingError:
                if not await self._make_table():
                    raise
                await self.nft.apply(commands, read_at=read_at)

    async def _mended_chains(self) -> list[Command]:
        """Look at the shared chains one by one: of many services, the whole table takes longer."""
        shown = Listed()
        for name in base.CHAINS:
            found = await self._shown_chain(name)
            shown.chains |= found.chains
            shown.rules |= found.rules
        return [base.awake(self._place), *base.chains_of_it(self._place, shown)]

    async def _shown_chain(self, name: str) -> Listed:
        try:
            return listed(await self.nft.show("chain", name))
        except MissingError:
            return Listed()

    async def _make_table(self) -> bool:
        """Make what is missing of the table; returns whether anything was."""
        answer = await self._shown_table()
        if answer is None:
            await self._check_table_name()
        shown = None if answer is None else await asyncio.to_thread(listed, answer)
        commands = base.all_of_it(self._place, shown)
        if not commands:
            return False
        try:
            with self.nft.permit.outside_of_action():
                await self.nft.apply(commands)
        except MissingError as error:
            if shown is not None:
                raise
            raise ConfigurationError(
                f"{error.message}; this kernel's nftables has no NAT, so load nft_chain_nat, "
                "nft_masq and nft_ct, or run the roles on another machine"
            ) from error
        return True

    async def _check_table_name(self) -> None:
        try:
            await self.nft.ask(f"add table {FAMILY} {self._table}", "-c")
        except RefusedError as error:
            if _NOT_A_NAME not in error.message:
                raise
            raise ConfigurationError(
                f"spec.endpoint: {self._table} is a reserved word of nft; use another name for "
                "the table"
            ) from error

    async def _done(self, action: Action) -> Effect:
        """Return what a write has made; if that cannot be read, nobody knows."""
        try:
            seen = await self._look(action.external_name, action.fields)
        except ProviderError as error:
            raise UnknownResultError(
                f"the service was written, but reading it failed: {error.message}",
                status=HTTPStatus.CONFLICT,
            ) from error
        if seen is None or seen.is_nothing:
            raise UnknownResultError(
                "the service was written, but no longer exists", status=HTTPStatus.CONFLICT
            )
        return Effect(seen.as_object())

    # --- what stands in the way

    async def _changed(self, action: Action, error: MissingError) -> ProviderError:
        """Describe what has become of something that was seen a moment before."""
        found = await self.read(action.external_name)
        if found is None:
            return NotFoundError(
                f"service {action.external_name!r} does not exist", status=error.status
            )
        return ConflictError(f"{found.name!r} has changed since it was read", obstacle=found)

    async def _front_taken(self, action: Action, error: TakenError) -> ProviderError:
        """Say who has the address and port that a service wants: it waits until they are free."""
        front = front_of_fields(action.fields)
        element, _ = await self._led_by(front)
        if element is None:
            return NotDoneError(
                f"{error.message}; it has changed since it was read", status=error.status
            )
        other = await self._shown_to(action.namespace, element)
        return NotDoneError(
            f"port {front.port}/{front.protocol} of {front.address} is already mapped "
            f"to {other}; withdraw that service, or declare another port",
            status=error.status,
        )

    async def _shown_to(self, namespace: str, element: Element) -> str:
        """Return where an element leads; a service of another namespace is not named."""
        name = name_of(element.target)
        if name is None:
            return target_text(element)
        seen = await self._look(name)
        mark = None if seen is None else seen.mark
        if mark is None or namespace_of(mark.labels.get(OWNER_LABEL, "")) == namespace:
            return f"service {name!r}"
        return "a service of another namespace"


def _check_name(action: Action) -> None:
    problem = name_problem(action.external_name)
    if problem is not None:
        raise RefusedError(f"invalid name {action.external_name!r}: {problem}")


def _own_or_refused(action: Action, found: ExternalObject) -> Effect:
    if found.written_by == action.idempotency_key:
        return Effect(found, replayed=True)
    raise ConflictError(f"{found.name!r} already exists", obstacle=found)
