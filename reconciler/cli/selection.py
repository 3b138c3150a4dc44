"""The resources that a command line selects. All commands accept the same syntax.

=============================  ================================================================
``NAME ...``                   resources of any kind, in any namespace
``KIND [NAME ...]``            resources of that kind, in the selected namespace
``KIND/NAME ...``              resources of those kinds, in the selected namespace
``NAMESPACE/KIND/NAME ...``    exactly that resource
=============================  ================================================================
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from events.names import DEFAULT_NAMESPACE, ResourceKey, namespace_of_kind
from projections.status import StatusRow
from reconciler.cli.connection import Connection, bus, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.folded_log import current_models
from reconciler.cli.naming import (
    Reference,
    check_names,
    is_same_kind,
    parse_reference,
    resolve_kind,
)
from reconciler.cli.options import UNFILTERED, Filter
from reconciler.cli.selectors import Selector, parse_selector
from reconciler.provider.kind import installed_kinds
from reconciler.sdk.moments import Moment

_MAX_SHOWN_MATCHES: Final = 5


class Selection(msgspec.Struct, frozen=True):
    """The parsed words of a command line, before any request to a server.

    ``first`` may be a kind or a name, depending on the existing resources.
    """

    first: str | None
    named: tuple[Reference, ...]
    namespace: str | None
    all_namespaces: bool
    labels: Selector

    def resolve(self, rows: Collection[StatusRow]) -> ResolvedSelection:
        """Resolve the words against the existing resources; raises ``CommandError``."""
        kind = None if self.first is None else _find_kind(self.first, _list_kinds(rows))
        named = self._resolve_names(kind)
        if self.first is not None and kind is None:
            if not any(row.name == self.first for row in rows):
                raise CommandError(_unknown_word(self.first, _list_kinds(rows)))
            named = (Reference(self.first, self.namespace, None, self.first), *named)
        scope = self._namespace_of_kind(kind, None if named else DEFAULT_NAMESPACE)
        return ResolvedSelection(kind, named, scope, self.labels)

    @property
    def tokens(self) -> str:
        """The narrowest `namespace.kind.name` pattern that matches all possible resources."""
        kind = None if self.first is None else _find_kind(self.first, installed_kinds())
        single = self._resolve_names(kind)[0] if len(self.named) == 1 else None
        if self.first is not None and kind is None:
            return f"{self.namespace or '*'}.*.*"  # the word may be a name, or an unknown kind
        if single is not None:
            # The spelling of a kind that is not installed is unknown.
            known = single.kind if single.kind in installed_kinds() else None
            return f"{single.namespace or '*'}.{known or '*'}.{single.name}"
        scope = self.namespace if self.named else self._namespace_of_kind(kind, DEFAULT_NAMESPACE)
        return f"{scope or '*'}.{kind or '*'}.*"

    def exact_keys(self) -> list[ResourceKey] | None:
        """Return the keys if the words alone determine them, or None if rows must be read."""
        kind = None if self.first is None else _find_kind(self.first, installed_kinds())
        if not self.named or self.labels.terms or (self.first is not None and kind is None):
            return None
        keys = [
            ResourceKey.checked(each.namespace, each.kind, each.name)
            for each in self._resolve_names(kind)
            if each.namespace is not None and each.kind is not None
        ]
        return list(dict.fromkeys(keys)) if len(keys) == len(self.named) else None

    def _resolve_names(self, kind: str | None) -> tuple[Reference, ...]:
        """Add the kind and namespace that names omit, if they are known."""
        return tuple(
            Reference(
                each.text,
                each.namespace or self._namespace_of_kind(each.kind or kind),
                resolve_kind(each.kind) if each.kind is not None else kind,
                each.name,
            )
            for each in self.named
        )

    def _namespace_of_kind(self, kind: str | None, default: str | None = None) -> str | None:
        """Return the namespace of a kind, ``default`` if there is no kind, or None for all."""
        if self.all_namespaces or self.namespace is not None:
            return self.namespace
        return default if kind is None else namespace_of_kind(resolve_kind(kind), DEFAULT_NAMESPACE)


class ResolvedSelection(msgspec.Struct, frozen=True):
    """The resolved words of a command line."""

    kind: str | None
    named: tuple[Reference, ...]
    namespace: str | None
    labels: Selector

    def matches(self, row: StatusRow) -> bool:
        """Return whether a resource is selected."""
        if not self.labels.matches(row.labels):
            return False
        if self.named:
            return any(_matches(each, row) for each in self.named)
        return self.namespace in (None, row.namespace) and self.kind in (None, row.kind)

    def check_named(self, rows: Collection[StatusRow], when: Moment | None = None) -> None:
        """Raise ``CommandError`` if a named resource is missing from these rows."""
        for reference in self.named:
            if any(_matches(reference, row) for row in rows):
                continue
            kind = "" if reference.kind is None else f"{reference.kind} "
            scope = (
                "any namespace"
                if reference.namespace is None
                else f"namespace {reference.namespace}"
            )
            is_not, at = f"does not exist in {scope}", ""
            if when is not None:
                is_not, at = (
                    f"did not exist in {scope} at {when}",
                    f" --at {when.position}",
                )
            raise CommandError(
                f"{kind}{reference.name!r} {is_not}; `reconciler get -A{at}` lists all resources"
            )

    def check_unique(self, rows: Collection[StatusRow]) -> None:
        """Raise ``CommandError`` if a name matches several of these rows."""
        for reference in self.named:
            matches = [str(row.key) for row in rows if _matches(reference, row)]
            if len(matches) > 1:
                names = ", ".join(matches[:_MAX_SHOWN_MATCHES]) + (
                    ", ..." if len(matches) > _MAX_SHOWN_MATCHES else ""
                )
                raise CommandError(
                    f"{reference.text!r} matches {len(matches)} resources ({names}); use "
                    "NAMESPACE/KIND/NAME"
                )


def parse_selection(words: Sequence[str], where: Filter = UNFILTERED) -> Selection:
    """Parse the words of a command line; raises ``UsageError`` and ``InvalidNameError``."""
    namespace, all_namespaces = where.namespace, where.all_namespaces
    check_names(namespace=namespace)
    if all_namespaces and namespace is not None:
        raise UsageError("--namespace and --all-namespaces: use only one of them")
    first, rest = (None, words) if not words or "/" in words[0] else (words[0], words[1:])
    check_names(name=first)
    named = tuple(parse_reference(word, namespace) for word in rest)
    return Selection(first, named, namespace, all_namespaces, parse_selector(where.labels))


def select_keys(
    connection: Connection,
    words: Sequence[str],
    what: str,
    where: Filter,
    *,
    whole_kinds: bool = False,
) -> list[ResourceKey]:
    """Return the keys of the resources that a command acts on, without duplicates.

    Exact names need not exist. Other words are matched against the resources on the bus. ``what``
    is the command, for errors. A kind alone is sufficient only with ``whole_kinds``. Raises
    ``UsageError``, ``InvalidNameError``, ``CommandError`` and ``BusError``.
    """
    selection = parse_selection(words, where)
    if not words and not where.labels:
        raise UsageError(
            f"{what}: no resource given; use KIND NAME..., NAMESPACE/KIND/NAME, or -l LABELS"
        )
    kind = None if selection.first is None else _find_kind(selection.first, installed_kinds())
    _check_enough(kind, selection, what, whole_kinds)
    exact = selection.exact_keys()
    return (
        run_async(_read_keys(connection, selection, what, whole_kinds)) if exact is None else exact
    )


async def _read_keys(
    connection: Connection, selection: Selection, what: str, whole_kinds: bool
) -> list[ResourceKey]:
    async with bus(connection) as nc:
        known = (await current_models(nc)).status.values()
    rows = [row for row in known if not row.is_foreign or row.outcome == "Held"]
    selected = selection.resolve(rows)
    _check_enough(selected.kind, selection, what, whole_kinds)
    rows_selected = [row for row in rows if selected.matches(row)]
    selected.check_named(rows)
    selected.check_unique(rows_selected)
    keys = sorted(row.key for row in rows_selected if row.declared or selected.named)
    if not keys:
        raise CommandError(f"nothing to {what}: no declared resource matches")
    return keys


def _check_enough(kind: str | None, selection: Selection, what: str, whole_kinds: bool) -> None:
    if kind is not None and not (selection.named or selection.labels.terms or whole_kinds):
        raise UsageError(f"{what}: no {kind} named; use at least one name, or -l LABELS")


def _list_kinds(rows: Iterable[StatusRow]) -> list[str]:
    return sorted({*installed_kinds(), *(row.kind for row in rows)})


def _unknown_word(text: str, kinds: Sequence[str]) -> str:
    close = difflib.get_close_matches(text.capitalize(), kinds, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}? " if close else ""
    return (
        f"{text!r} is neither a kind nor the name of a resource; {hint}`reconciler kinds` lists "
        "the kinds, and `reconciler get -A` the resources"
    )


def _find_kind(text: str, kinds: Iterable[str]) -> str | None:
    return next((each for each in kinds if is_same_kind(text, each)), None)


def _matches(each: Reference, row: StatusRow) -> bool:
    return (
        each.name == row.name
        and each.namespace in (None, row.namespace)
        and (each.kind is None or is_same_kind(each.kind, row.kind))
    )
