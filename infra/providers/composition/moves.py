"""Resources that move between two sets, and keep their objects.

Each set is changed by its own action, at its own time. The log shows which parts a set gives up and
which parts it wants, so the former set withdraws none that another one takes over (ADR 0081).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final, cast

from events.composition import CHILDREN, parent_in, set_key_of
from events.excerpt import list_first
from events.intake import ReconcileRequested
from events.log import Action, ExternalObserved, LogEvent, SpecResolved
from events.manifest import Fields
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.stored_content import CONTENT
from infra.providers.composition.contents import Contents
from infra.providers.composition.messages import Publish, build_message
from infra.providers.composition.state_reader import Declaration, StateReader
from reconciler.errors import NotDoneError

_SET_KINDS: Final = ("GitSource", "ManifestSet")
"""Kinds whose parts have names of their own, so that they can move to another set."""

_READ_SECONDS: Final = 30.0
"""Time limit for another source to read the repository that both declare."""

_WAIT_SECONDS: Final = 3.0
"""Time for which a call waits for another set, because most sets take their parts over within it.
A longer wait would delay the calls of other resources."""

_POLL_SECONDS: Final = 0.25
_READ_REASON: Final = "another set withdraws resources that may have moved to this one"

_TRANSIENT_REFUSALS: Final = ("StaleGeneration", "Superseded")
"""Refusals of a part that the next attempt may overcome. Others need its deletion or a change."""


class OtherSets:
    """Reads from the log which parts the sets give up and want."""

    def __init__(self, state_reader: StateReader, contents: Contents) -> None:
        self._state_reader = state_reader
        self._contents = contents
        self._names: dict[tuple[str, str], frozenset[str]] = {}

    async def is_given_up(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the newest action of a part's set no longer contains the part."""
        owner = parent_in(labels)
        if owner is None:
            return False
        actions = await self._state_reader.newest_actions(owner.tokens)
        action = actions.get(str(owner))
        if action is None:
            return False
        parts = await self._parts_after(owner, action)
        return parts is not None and name not in parts

    async def newest_actions(
        self, own: ResourceKey, names: Collection[str]
    ) -> Mapping[str, tuple[Action, Declaration]]:
        """Return the newest action of each other declared set that may contain these resources."""
        namespaces = {ResourceKey.parse(name).namespace for name in names} | {SYSTEM_NAMESPACE}
        actions: dict[str, Action] = {}
        for namespace in sorted(namespaces):
            for kind in _SET_KINDS:
                actions |= await self._state_reader.newest_actions(f"{namespace}.{kind}.*")
        actions.pop(str(own), None)
        declarations = await self._state_reader.declarations(list(actions))
        return {
            name: (action, declarations[name])
            for name, action in actions.items()
            if declarations[name].is_declared
        }

    async def find_wanted(self, own: ResourceKey, names: Collection[str]) -> Mapping[str, str]:
        """Return the other set that is about to declare each of these parts of a set."""
        wanted: dict[str, str] = {}
        for name, (action, declared) in (await self.newest_actions(own, names)).items():
            key = ResourceKey.parse(name)
            parts = await self.wanted_parts(key, action, declared)
            parts = parts.intersection(names)
            if parts:
                parts -= await self.find_refused(key)
            wanted |= dict.fromkeys(parts, name)
        return wanted

    async def wanted_parts(
        self, key: ResourceKey, action: Action, declared: Declaration
    ) -> frozenset[str]:
        """Return the parts of a set after its newest action, unless a declaration replaced it."""
        if action.generation != declared.generation:
            return frozenset()
        return await self._parts_after(key, action) or frozenset()

    async def _parts_after(self, key: ResourceKey, action: Action) -> frozenset[str] | None:
        """Return the parts of a set after an action; None if its content is no longer stored."""
        if action.operation == "Delete":
            return frozenset()
        return await self.parts_of(key, action.fields)

    async def parts_of(self, key: ResourceKey, fields: Fields) -> frozenset[str] | None:
        """Return the parts of a set with these fields; None if its content is no longer stored."""
        digest = fields.get(CONTENT)
        if digest is None:
            return frozenset(fields.get(CHILDREN, {}))
        location = (key.namespace, digest)
        if location not in self._names:
            parts = await self._contents.load(*location)
            if parts is None:
                return None
            self._names[location] = frozenset(str(each.manifest.key) for each in parts)
        return self._names[location]

    async def find_refused(self, key: ResourceKey) -> frozenset[str]:
        """Return the parts that a set cannot declare while their current declaration exists."""
        spec = (await self._state_reader.find_set(set_key_of(key))).spec
        refused = {} if spec is None else spec.refused
        return frozenset(
            name for name, why in refused.items() if not why.startswith(_TRANSIENT_REFUSALS)
        )


class Moves:
    """Waits for the parts that another set takes over from an action's set.

    ``content``: the fields of the action's set.
    """

    def __init__(
        self,
        state_reader: StateReader,
        others: OtherSets,
        publish: Publish,
        action: Action,
        content: Fields,
    ) -> None:
        self._state_reader = state_reader
        self.others = others
        self._publish = publish
        self._action = action
        self._repository = _repository_of(content)

    async def wait_for_takeover(self, parent: str, names: Collection[str]) -> None:
        """Wait until no other set is about to take over these parts of a set.

        Raises ``NotDoneError`` if that takes longer than a call may wait.
        """
        own = ResourceKey.parse(parent)
        if own.kind not in _SET_KINDS:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_SECONDS
        remaining = set(names)
        while remaining:
            blocker = await self._find_blocker(own, remaining)
            if not blocker:
                return
            if loop.time() > deadline:
                raise NotDoneError(f"waiting for {blocker}", status=HTTPStatus.CONFLICT)
            await asyncio.sleep(_POLL_SECONDS)
            declared = await self._state_reader.declarations(list(remaining))
            remaining = {name for name, each in declared.items() if is_part(each, parent)}

    async def _find_blocker(self, own: ResourceKey, names: Collection[str]) -> str:
        """Describe the first other set that may take over one of these parts; empty if none."""
        blocker = ""
        for name, (action, declared) in (await self.others.newest_actions(own, names)).items():
            key = ResourceKey.parse(name)
            wanted = (await self.others.wanted_parts(key, action, declared)).intersection(names)
            is_sibling = (
                bool(self._repository) and _repository_of(action.fields) == self._repository
            )
            if not (wanted or is_sibling):
                continue
            is_read, resolved = await self._request_read(key)
            if resolved is not None:
                parts = await self.others.parts_of(key, resolved) or frozenset[str]()
                wanted |= parts.intersection(names)
            wanted -= await self.others.find_refused(key)
            if wanted:
                blocker = blocker or f"{name} to take over {list_first(sorted(wanted))}"
            elif is_sibling and not is_read:
                blocker = blocker or f"{name} to read its repository"
        return blocker

    async def _request_read(self, key: ResourceKey) -> tuple[bool, Fields | None]:
        """Request a read of another set, once per action, which also ends its backoff.

        Return whether the read has ended, and the set's newest desired fields.
        """
        message = build_message(self._action, key, ReconcileRequested(_READ_REASON), "moved")
        events = await self._state_reader.history(key)
        resolved = [each.data.fields for each in events if isinstance(each.data, SpecResolved)]
        newest = resolved[-1] if resolved else None
        request = next((each for each in events if each.causationid == message.message_id), None)
        if request is None:
            [reply] = await self._publish([message])
            return not reply.accepted, newest  # refused if it was withdrawn
        return _is_answered(events, request), newest


def is_part(declaration: Declaration, parent: str) -> bool:
    """Return whether a resource is declared as part of this set."""
    return declaration.is_declared and str(parent_in(declaration.labels)) == parent


def _is_answered(events: Sequence[LogEvent], request: LogEvent) -> bool:
    """Return whether a read followed the request, or its time limit has passed."""
    later = [each for each in events if each.resourceversion > request.resourceversion]
    is_read = any(isinstance(each.data, ExternalObserved) for each in later)
    return is_read or datetime.now(UTC) - request.time > timedelta(seconds=_READ_SECONDS)


def _repository_of(fields: Fields) -> Fields:
    """Return the address of the repository that a set's content comes from; empty if none."""
    source = cast("Fields", fields.get("source") or {})
    return {name: source.get(name) for name in ("url", "ref")} if source else {}
