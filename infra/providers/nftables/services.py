"""The ``Service`` provider: each write is one nft transaction, based on an earlier read."""

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
from infra.providers.nftables.flows import check_program, end_flows, read_flows
from infra.providers.nftables.listed import (
    MASQUERADED,
    SERVICES,
    Element,
    TableListing,
    parse_element,
    parse_listing,
    parse_service_tables,
)
from infra.providers.nftables.marks import Mark
from infra.providers.nftables.monitor import Monitor
from infra.providers.nftables.nft import Command, ExistsError, MissingError, Nft
from infra.providers.nftables.rules import (
    ServiceState,
    all_services,
    build_close_commands,
    build_delete_commands,
    build_state,
    build_write_commands,
    chain_of,
    declared_backends,
    declared_front,
    describe_target,
    leading_element,
    name_of,
    read_mark,
)
from infra.providers.nftables.spec import Front, name_problem, normalize
from infra.providers.nftables.system import read_system_id
from infra.providers.nftables.table_ref import FAMILY, parse_endpoint
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
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, namespace_of

_RESERVED_WORD: Final = "syntax error"


class ServicesProvider(NamedObjects[ServiceState]):
    """Writes services to a table, each with a separate chain and element."""

    noun = "service"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # the kernel checks the user of the process
        self._table_ref = parse_endpoint(config.endpoint)
        self._table = self._table_ref.table
        timeout = config.limits.request_timeout_seconds
        self.nft = Nft(self._table_ref, timeout, permit)
        self._monitor = Monitor(self.nft, timeout)
        # The kernel runs one transaction at a time, and the shared chains are created only once.
        self._write_lock = asyncio.Lock()

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a service cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> ServiceState | None:
        """Read a service."""
        state = await self._read_state(external_name)
        if state is None or state.is_empty:
            return None
        return (await self._add_flows([state]))[0]

    async def create_object(self, action: Action) -> ServiceState:
        """Create a service in one transaction, which fails if another client uses its chain."""
        name, read_at = action.external_name, time.monotonic()
        check_program(declared_front(action.fields))
        current = await self._read_state(name)
        if current is not None and not current.is_empty:
            raise ConflictError(f"service {name!r} already exists")
        await self._check_other_tables(action)
        uid = f"service-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"
        commands = build_write_commands(self._table, action, uid, current)
        try:
            await self._apply(commands, read_at=read_at, may_be_damaged=current is not None)
        except ExistsError as error:
            if await self.find(name) is not None:
                raise ConflictError(f"service {name!r} already exists") from error
            raise await self._build_front_conflict(action, error) from error
        await self._end_outdated_flows(action)
        return await self._read_written(action)

    async def update_object(
        self, action: Action, existing: ExistingObject[ServiceState]
    ) -> ServiceState:
        """Replace the rules of a service in one transaction, which fails if one was deleted."""
        observed, current = existing.object, existing.native
        assert observed.uid is not None
        check_program(declared_front(action.fields))
        commands = build_write_commands(self._table, action, observed.uid, existing.native)
        if current.element is None or current.element.front != declared_front(action.fields):
            await self._check_other_tables(action)
        # If the service does not differ, or has no rules left, the shared chains may be damaged.
        is_as_declared = normalize(observed.fields) == normalize(action.fields)
        may_be_damaged = existing.native.mark is None or (
            is_as_declared and observed.labels == action.labels
        )
        try:
            await self._apply(commands, read_at=existing.read_at, may_be_damaged=may_be_damaged)
        except MissingError as error:
            raise _build_changed_error(action, error) from error
        except ExistsError as error:
            raise await self._build_front_conflict(action, error) from error
        if current.front is not None and current.front != declared_front(action.fields):
            await self._end_flows_of_free_front(current.front)
        is_masquerade_changed = current.is_masqueraded != action.fields["masquerade"]
        await self._end_outdated_flows(action, keeps_backends=not is_masquerade_changed)
        return await self._read_written(action)

    async def complete_object(
        self, action: Action, existing: ExistingObject[ServiceState]
    ) -> ServiceState:
        """End the flows that an interrupted write has left behind."""
        del existing
        # The interrupted write may have changed the masquerading.
        await self._end_outdated_flows(action, keeps_backends=action.operation == "Create")
        return await self._read_written(action)

    async def delete_object(self, action: Action, existing: ExistingObject[ServiceState]) -> None:
        """Delete a service in one transaction, which fails if one of its rules was deleted.

        For a UDP service, its element and its flows are removed first, so that a repetition still
        finds the rest.
        """
        current = existing.native
        try:
            if current.front is not None and current.front.protocol == "udp":
                check_program(current.front)
                if commands := build_close_commands(self._table, current):
                    async with self._write_lock:
                        await self.nft.apply(commands, read_at=existing.read_at)
                await self._end_flows_of_free_front(current.front)
                current = replace(current, element=None, is_masqueraded=False)
            async with self._write_lock:
                await self.nft.apply(
                    build_delete_commands(self._table, current), read_at=existing.read_at
                )
        except MissingError as error:
            raise _build_changed_error(action, error) from error

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[ServiceState]]:
        """List the services of the table in one call; nothing if the table does not exist."""
        del scope, page_size, unreadable
        output = await self._read_table()
        if output is not None:
            states = await asyncio.to_thread(self._all_services, output)
            yield await self._add_flows(states)

    async def changes(self, after: str | None) -> str:
        """Wait for the next event about the table."""
        return await self._monitor.changes(after)

    async def system_id(self) -> str | None:
        """Return an id of the machine and the network namespace of the table."""
        return read_system_id(self._table_ref)

    async def close(self) -> None:
        """Stop the process that follows events."""
        await self._monitor.close()

    # --- reading

    async def _read_state(self, name: str) -> ServiceState | None:
        """Read the chain and the element of a service; None if it has no chain."""
        chain = chain_of(name)
        try:
            listing = parse_listing(await self.nft.show("chain", chain))
        except MissingError:
            return None
        mark = read_mark(listing.rules.get(chain, []))
        front = None if mark is None else mark.front
        element, is_masqueraded = await self._read_front(front) if front else (None, False)
        if element is not None and element.target != chain:
            element = None
        if element is None and mark is None:
            element = await self._find_element(chain)
            if element is not None and element.front != front:
                _, is_masqueraded = await self._read_front(element.front)
        if element is None and mark is None:
            is_masqueraded = False  # nothing proves that this front belongs to the service
        return build_state(listing, name, element, is_masqueraded=is_masqueraded)

    async def _read_front(self, front: Front) -> tuple[Element | None, bool]:
        """Return the element of a front, and whether the front is masqueraded."""
        queries = [
            _build_get_element(self._table, set_name, front) for set_name in (SERVICES, MASQUERADED)
        ]
        try:
            return parse_element(await self.nft.query("\n".join(queries)), front), True
        except MissingError:  # one or both are missing
            pass
        outputs: list[str | None] = []
        for query in queries:
            try:
                outputs.append(await self.nft.query(query))
            except MissingError:
                outputs.append(None)
        element_output, masqueraded = outputs
        return None if element_output is None else parse_element(
            element_output, front
        ), masqueraded is not None

    async def _find_element(self, chain: str) -> Element | None:
        """Return the element that leads to a chain without a mark. Lists all elements."""
        try:
            output = await self.nft.show("map", SERVICES)
        except MissingError:
            return None
        listing = await asyncio.to_thread(parse_listing, output)
        return leading_element(None, [each for each in listing.elements if each.target == chain])

    async def _add_flows(self, states: list[ServiceState]) -> list[ServiceState]:
        """Add the backends of existing flows to the services that Reconciler wrote."""
        fronts = {
            each.name: each.element.front
            for each in states
            if each.mark is not None and each.element is not None
        }
        flows = await read_flows(self.nft, set(fronts.values()))
        return [
            replace(each, flow_backends=flows.get(fronts[each.name], ()))
            if each.name in fronts
            else each
            for each in states
        ]

    async def _read_table(self) -> bytes | None:
        try:
            return await self.nft.show("table")
        except MissingError:
            return None

    def _all_services(self, output: bytes) -> list[ServiceState]:
        listing = parse_listing(output)
        is_reachable = base.is_intact(self._table_ref, listing)
        return [replace(each, is_reachable=is_reachable) for each in all_services(listing)]

    # --- writing

    async def _apply(
        self, commands: list[Command], *, read_at: float, may_be_damaged: bool
    ) -> None:
        """Execute a transaction, and repair the shared objects if they may be damaged."""
        async with self._write_lock:
            repairs = await self._build_chain_repairs() if may_be_damaged else []
            try:
                await self.nft.apply([*repairs, *commands], read_at=read_at)
            except MissingError:
                if not await self._create_table():
                    raise
                await self.nft.apply(commands, read_at=read_at)

    async def _end_outdated_flows(self, action: Action, *, keeps_backends: bool = True) -> None:
        """End the flows to a written service that do not match its declaration."""
        kept = declared_backends(action.fields) if keeps_backends else ()
        try:
            await end_flows(self.nft, declared_front(action.fields), kept)
        except ProviderError as error:
            raise UnknownResultError(
                f"the service was written, but {error.message}", status=HTTPStatus.CONFLICT
            ) from error

    async def _end_flows_of_free_front(self, front: Front) -> None:
        """End the flows to a former front of a service, unless it now belongs to another."""
        if front.protocol == "udp" and (await self._read_front(front))[0] is None:
            await end_flows(self.nft, front)

    async def _build_chain_repairs(self) -> list[Command]:
        """Return repairs for the shared chains. Reads only those: listing a table is slow."""
        listing = TableListing()
        for name in base.CHAINS:
            part = await self._read_chain(name)
            listing.chains |= part.chains
            listing.rules |= part.rules
        return [
            base.build_table_command(self._table_ref),
            *base.build_chain_repairs(self._table_ref, listing),
        ]

    async def _read_chain(self, name: str) -> TableListing:
        try:
            return parse_listing(await self.nft.show("chain", name))
        except MissingError:
            return TableListing()

    async def _create_table(self) -> bool:
        """Create the missing shared objects. Return whether any was missing."""
        output = await self._read_table()
        if output is None:
            await self._check_table_name()
        listing = None if output is None else await asyncio.to_thread(parse_listing, output)
        commands = base.build_repairs(self._table_ref, listing)
        if not commands:
            return False
        try:
            with self.nft.permit.exclude_writes():
                await self.nft.apply(commands)
        except MissingError as error:
            if listing is not None:
                raise
            raise ConfigurationError(
                f"{error.message}; this kernel's nftables has no NAT, so load nft_chain_nat, "
                "nft_masq and nft_ct, or run the roles on another machine"
            ) from error
        return True

    async def _check_table_name(self) -> None:
        try:
            await self.nft.query(f"add table {FAMILY} {self._table}", "-c")
        except RefusedError as error:
            if _RESERVED_WORD not in error.message:
                raise
            raise ConfigurationError(
                f"spec.endpoint: {self._table} is a reserved word in nft; use another name for "
                "the table"
            ) from error

    async def _read_written(self, action: Action) -> ServiceState:
        """Read a service after a write; if that fails, the result is unknown."""
        try:
            state = await self.find(action.external_name)
        except ProviderError as error:
            raise UnknownResultError(
                f"the service was written, but it could not be read: {error.message}",
                status=HTTPStatus.CONFLICT,
            ) from error
        if state is None:
            raise UnknownResultError(
                "the service was written, but no longer exists", status=HTTPStatus.CONFLICT
            )
        return state

    # --- obstacles

    async def _build_front_conflict(self, action: Action, error: ExistsError) -> ProviderError:
        """Return an error that names the owner of the declared address and port."""
        front = declared_front(action.fields)
        element, _ = await self._read_front(front)
        if element is None:
            return NotDoneError(
                f"{error.message}; it has changed since it was read", status=error.status
            )
        return await self._build_in_use_error(action, front, element, self._table)

    async def _check_other_tables(self, action: Action) -> None:
        """Raise ``NotDoneError`` if another table maps the declared address and port.

        Only one of the two would receive packets, and the kernel does not report the other.
        """
        front = declared_front(action.fields)
        for table in parse_service_tables(await self.nft.show_maps()):
            if table == self._table:
                continue
            try:
                output = await self.nft.query(_build_get_element(table, SERVICES, front))
            except MissingError:
                continue
            if (element := parse_element(output, front)) is not None:
                raise await self._build_in_use_error(action, front, element, table)

    async def _build_in_use_error(
        self, action: Action, front: Front, element: Element, table: str
    ) -> NotDoneError:
        owner = await self._describe_target(action.namespace, element, table)
        location = "" if table == self._table else f" in table {FAMILY} {table}"
        return NotDoneError(
            f"port {front.port}/{front.protocol} of {front.address} is already mapped "
            f"to {owner}{location}; withdraw that service, or declare another port",
            status=HTTPStatus.CONFLICT,
        )

    async def _describe_target(self, namespace: str, element: Element, table: str) -> str:
        """Describe where an element leads. Does not name services in other namespaces."""
        name = name_of(element.target)
        if name is None:
            return describe_target(element)
        mark = await self._read_mark(element.target, table)
        if mark is None or namespace_of(mark.labels.get(OWNER_LABEL, "")) == namespace:
            return f"service {name!r}"
        return "a service in another namespace"

    async def _read_mark(self, chain: str, table: str) -> Mark | None:
        try:
            listing = parse_listing(await self.nft.show("chain", chain, table=table))
        except MissingError:
            return None
        return read_mark(listing.rules.get(chain, []))


def _build_get_element(table: str, set_name: str, front: Front) -> str:
    key = f"{{ {front.address} . {front.protocol} . {front.port} }}"
    return f"get element {FAMILY} {table} {set_name} {key}"


def _build_changed_error(action: Action, error: MissingError) -> ConflictError:
    return ConflictError(
        f"service {action.external_name!r} has changed since it was read", status=error.status
    )
