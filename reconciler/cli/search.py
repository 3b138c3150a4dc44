"""Find in the log the resource or kind that a user names, even if no role is running."""

from __future__ import annotations

from collections.abc import Sequence

from nats.aio.client import Client

from events.excerpt import list_first
from events.field_hints import closest_hint
from events.names import DEFAULT_NAMESPACE, ResourceKey, is_token
from infra.bus.event_log import open_log
from infra.bus.streams import LOG
from infra.jetstream.connection import api_request
from reconciler.cli.errors import CommandError
from reconciler.cli.folded_log import current_models
from reconciler.cli.naming import Reference, is_same_kind, parse_reference, resolve_kind
from reconciler.provider.kind import installed_kinds


async def find_resource(nc: Client, reference: Reference) -> ResourceKey:
    """Find the one resource that a user's words name, even if it was deleted.

    Raises ``CommandError`` if the log has no events for such a resource, or several match.
    """
    keys, text = await _find_matches(nc, reference), reference.text
    if len(keys) == 1:
        return keys[0]
    if not keys:
        raise CommandError(
            f"the log has no resource {text!r}; `reconciler get -A` lists all resources"
        )
    names = ", ".join(str(key) for key in keys[:5]) + (", ..." if len(keys) > 5 else "")  # noqa: PLR2004
    raise CommandError(f"{text!r} matches {len(keys)} resources ({names}); use NAMESPACE/KIND/NAME")


async def find_in_words(
    nc: Client, words: Sequence[str], namespace: str | None
) -> tuple[ResourceKey, Sequence[str]]:
    """Find the resource at the beginning of ``words``; return it and the words after it.

    It may be ``KIND NAME``, even if the kind is defined at run time. Raises ``CommandError``,
    ``UsageError`` and ``InvalidNameError``.
    """
    first, *rest = words
    if rest and "/" not in first:
        is_installed = resolve_kind(first) in installed_kinds()
        if is_installed or await _is_kind_and_name(nc, first, rest[0], namespace):
            first, rest = f"{first}/{rest[0]}", rest[1:]
    return await find_resource(nc, parse_reference(first, namespace)), rest


async def _is_kind_and_name(nc: Client, kind: str, name: str, namespace: str | None) -> bool:
    if not is_token(kind) or not is_token(name):
        return False  # it is the path of a field
    return any(is_same_kind(kind, key.kind) for key in await _find_in_log(nc, namespace, name))


async def _find_in_log(nc: Client, namespace: str | None, name: str) -> set[ResourceKey]:
    await open_log(nc)
    request = {"subjects_filter": f"log.{namespace or '*'}.*.{name}.>"}
    info = await api_request(nc, f"STREAM.INFO.{LOG}", request)
    subjects: dict[str, int] = info["state"].get("subjects") or {}
    return {ResourceKey(*subject.split(".")[1:4]) for subject in subjects}


async def _find_matches(nc: Client, reference: Reference) -> list[ResourceKey]:
    _, namespace, kind, name = reference
    keys = await _find_in_log(nc, namespace, name)
    if not keys:  # the log may have lost all events of the resource
        known = [row.key for row in (await current_models(nc)).status.values()]
        keys = {key for key in known if key.name == name and namespace in (None, key.namespace)}
    return sorted(key for key in keys if kind is None or is_same_kind(kind, key.kind))


async def has_log_events(nc: Client, tokens: str) -> bool:
    """Return whether the log has events of resources that match ``namespace.kind.name``."""
    request = {"subjects_filter": f"log.{tokens}.>"}
    info = await api_request(nc, f"STREAM.INFO.{LOG}", request)
    return bool(info["state"].get("subjects"))


async def find_kind(nc: Client, text: str) -> str:
    """Return the kind that a user names: an installed kind, or a kind with resources in the log.

    Raises ``UnknownKindError``, which lists the known kinds.
    """
    kinds = installed_kinds()
    kind_name = next((kind for kind in kinds if is_same_kind(text, kind)), None)
    if kind_name is None:
        declared = {row.kind for row in (await current_models(nc)).status.values()}
        kind_name = next((kind for kind in declared if is_same_kind(text, kind)), None)
    return kinds[text].name if kind_name is None else kind_name


async def check_namespace(nc: Client, namespace: str | None) -> None:
    """Raise ``CommandError`` for a namespace without events in the log, which is probably a typo.

    The default namespace may be empty.
    """
    if namespace in (None, DEFAULT_NAMESPACE) or await has_log_events(nc, f"{namespace}.*.*"):
        return
    known = sorted({row.namespace for row in (await current_models(nc)).status.values()})
    raise CommandError(
        f"namespace {namespace} has never had a resource; the namespaces are: "
        f"{list_first(known) or 'none yet'}{closest_hint(str(namespace), known)}"
    )
