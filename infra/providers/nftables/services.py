"""The provider of ``Service``: each write is one nft transaction, based on a read before it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from events.log import Action
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
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import Found, NamedObjects
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, namespace_of

_NOT_A_NAME: Final = "syntax error"


class ServicesProvider(NamedObjects[Seen]):
    """Writes services into a table, each with its own chain and element."""

    noun = "service"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # the kernel checks the user of the process
        self._place = place_of(config.endpoint)
        self._table = self._place.table
        timeout = config.limits.request_timeout_seconds
        self.nft = Nft(self._place, timeout, permit)
        self._monitor = Monitor(self.nft, timeout)
        # The kernel runs one transaction at a time anyway, and the shared chains are created once.
        self._writing = asyncio.Lock()

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a service cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> Seen | None:
        """Read a service."""
        seen = await self._look(external_name)
        return None if seen is None or seen.is_nothing else seen

    async def create_object(self, action: Action) -> Seen:
        """Create a service in one transaction, which fails if another client uses its chain."""
        name, read_at = action.external_name, time.monotonic()
        seen = await self._look(name)
        if seen is not None and not seen.is_nothing:
            raise ConflictError(f"service {name!r} already exists")
        uid = f"service-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"
        commands = written(self._table, action, uid, seen)
        try:
            await self._apply(commands, read_at=read_at, is_suspect=seen is not None)
        except TakenError as error:
            if await self.find(name) is not None:
                raise ConflictError(f"service {name!r} already exists") from error
            raise await self._front_taken(action, error) from error
        return await self._done(action)

    async def update_object(self, action: Action, found: Found[Seen]) -> Seen:
        """Replace the rules of a service in one transaction, which fails if one was deleted."""
        shown = found.object
        assert shown.uid is not None
        commands = written(self._table, action, shown.uid, found.native)
        # If the service has no difference, or has no rules left, the shared chains may be damaged.
        is_as_wanted = normalize(shown.fields) == normalize(action.fields)
        is_suspect = found.native.mark is None or (is_as_wanted and shown.labels == action.labels)
        try:
            await self._apply(commands, read_at=found.read_at, is_suspect=is_suspect)
        except MissingError as error:
            raise _changed(action, error) from error
        except TakenError as error:
            raise await self._front_taken(action, error) from error
        return await self._done(action)

    async def delete_object(self, action: Action, found: Found[Seen]) -> None:
        """Delete a service in one transaction, which fails if one of its rules was deleted."""
        try:
            async with self._writing:
                await self.nft.apply(deleted(self._table, found.native), read_at=found.read_at)
        except MissingError as error:
            raise _changed(action, error) from error

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[Seen]]:
        """List the services of the table, which nft shows in one output; none without a table."""
        del scope, page_size, unreadable
        output = await self._shown_table()
        if output is not None:
            yield await asyncio.to_thread(self._all_seen, output)

    async def changes(self, after: str | None) -> str:
        """Wait for the next event of the table."""
        return await self._monitor.changes(after)

    async def close(self) -> None:
        """End the process that follows events."""
        await self._monitor.close()

    # --- reading

    async def _look(self, name: str) -> Seen | None:
        """Read the chain and the element of a service; None if it has no chain."""
        chain = chain_of(name)
        try:
            shown = listed(await self.nft.show("chain", chain))
        except MissingError:
            return None
        mark = mark_of(shown.rules.get(chain, []))
        front = None if mark is None else mark.front
        element, is_masqueraded = await self._led_by(front) if front else (None, False)
        if element is not None and element.target != chain:
            element = None
        if element is None and mark is None:
            element = await self._leading_to(chain)
            if element is not None and element.front != front:
                _, is_masqueraded = await self._led_by(element.front)
        if element is None and mark is None:
            is_masqueraded = False  # there is no evidence that this front is its own
        return seen_in(shown, name, element, is_masqueraded=is_masqueraded)

    async def _led_by(self, front: Front) -> tuple[Element | None, bool]:
        """Return the element of a front, and whether the front is masqueraded."""
        key = f"{{ {front.address} . {front.protocol} . {front.port} }}"
        asked = [f"get element {FAMILY} {self._table} {of} {key}" for of in (SERVICES, MASQUERADED)]
        try:
            return found_element(await self.nft.ask("\n".join(asked)), front), True
        except MissingError:  # one of them is missing, or both are
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
        """Search all elements for one that leads to a chain without a mark."""
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

    def _all_seen(self, output: bytes) -> list[Seen]:
        shown = listed(output)
        is_reached = base.is_sound(self._place, shown)
        return [replace(each, is_reached=is_reached) for each in all_seen(shown)]

    # --- writing

    async def _apply(self, commands: list[Command], *, read_at: float, is_suspect: bool) -> None:
        """Execute a transaction, and repair the shared objects with it if they may be missing."""
        async with self._writing:
            mended = await self._mended_chains() if is_suspect else []
            try:
                await self.nft.apply([*mended, *commands], read_at=read_at)
            except MissingError:
                if not await self._make_table():
                    raise
                await self.nft.apply(commands, read_at=read_at)

    async def _mended_chains(self) -> list[Command]:
        """Read the shared chains one by one: with many services, the whole table takes longer."""
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
        """Create the missing shared objects. Return whether any was missing."""
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

    async def _done(self, action: Action) -> Seen:
        """Read a service after a write; if that fails, the result is unknown."""
        try:
            seen = await self.find(action.external_name)
        except ProviderError as error:
            raise UnknownResultError(
                f"the service was written, but reading it failed: {error.message}",
                status=HTTPStatus.CONFLICT,
            ) from error
        if seen is None:
            raise UnknownResultError(
                "the service was written, but no longer exists", status=HTTPStatus.CONFLICT
            )
        return seen

    # --- obstacles

    async def _front_taken(self, action: Action, error: TakenError) -> ProviderError:
        """Name the owner of the declared address and port. The action waits until they are free."""
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
        """Return where an element leads, without the name of a service in another namespace."""
        name = name_of(element.target)
        if name is None:
            return target_text(element)
        seen = await self._look(name)
        mark = None if seen is None else seen.mark
        if mark is None or namespace_of(mark.labels.get(OWNER_LABEL, "")) == namespace:
            return f"service {name!r}"
        return "a service of another namespace"


def _changed(action: Action, error: MissingError) -> ConflictError:
    return ConflictError(
        f"service {action.external_name!r} has changed since it was read", status=error.status
    )
