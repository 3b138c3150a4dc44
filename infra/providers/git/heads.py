"""Heads of sources: what a repository has now, found once an interval, and kept while it holds.

Only a look asks the repository; a write shows what is known.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec
import structlog

from events.composition import ComposedSetSpec, digest_of, without_name
from events.manifest import Fields, InvalidManifestError
from events.names import ResourceKey
from events.secret import SecretRef
from events.stored_content import CONTENT, HEAD, Part, StoredContent, stored_content
from infra.providers.composition.contents import Contents
from infra.providers.git.checks import Check, checked_parts
from infra.providers.git.problems import GitError
from infra.providers.git.rendering import Renderers, rendered
from infra.providers.git.repository import Found, Remote, fetched, find_commit
from infra.providers.git.signatures import check_signature
from reconciler.composites.git_source import PROBLEM, REVISION, SOURCE, told_revision
from reconciler.errors import ConfigurationError, PermanentError, ProviderError
from reconciler.provider.secrets import Secrets

_AT_ONCE: Final = 4
_MAX_SECONDS: Final = 60
_MADE_FROM: Final = ("url", "path", "render", "signers")

_PASSING: Final = re.compile(
    r"[^\s'\"]*/reconciler-(?:git|key|render)-\w+/?(?:files/)?| at 0x[0-9a-f]+"
)
"""What differs each time the same goes wrong: it would be news at each look."""

_T = TypeVar("_T")
_encoder = msgspec.json.Encoder(order="deterministic")
_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """What a look has shown: of a source, beside the content that its set had.

    ``stored`` is kept while the set does not have it: a write of an older one may withdraw it.
    """

    source: Fields
    set_content: str
    looked_at: float
    revision: Fields
    content: str = ""
    changes: Fields | None = None
    stored: StoredContent | None = None
    problem: GitError | None = None

    def holds(self, spec: ComposedSetSpec) -> bool:
        """Return whether it is of this source, and of a set that was not changed otherwise."""
        had = spec.fields.get(CONTENT, "")
        return self.source == spec.fields[SOURCE] and had in (self.set_content, self.content)

    def outputs(self, spec: ComposedSetSpec) -> Fields:
        """Return what of it is shown: what changes when the repository does, and nothing else."""
        head: Fields = {REVISION: self.revision} if self.revision else {}
        if self.content:
            head[CONTENT] = self.content
        if self.changes and self.content != spec.fields.get(CONTENT):
            head["changes"] = self.changes
        shown: Fields = {HEAD: head} if head else {}
        if self.problem is not None:
            shown[PROBLEM] = {"reason": self.problem.reason, "message": self.problem.message}
        return shown


class Heads:
    """The heads of the sources of one API."""

    def __init__(
        self,
        contents: Contents,
        secrets: Secrets,
        check: Callable[[], Awaitable[Check]],
        renderers: Renderers,
        *,
        timeout_seconds: float,
    ) -> None:
        self._contents = contents
        self._secrets = secrets
        self._check = check
        self._renderers = renderers
        self._timeout_seconds = timeout_seconds
        self._known: dict[str, Head] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._hanging: set[str] = set()  # sources whose server does not come to an end

    def shown(self, spec: ComposedSetSpec) -> Fields:
        """Return what is known, without a look."""
        head = self._known.get(spec.parent)
        if head is None or not head.holds(spec):
            head = _of_set(spec, 0.0)
        return head.outputs(spec)

    async def looked_at(self, spec: ComposedSetSpec, *, fresh: bool) -> Fields:
        """Look at a repository if it is time, or now; return what is shown of it."""
        async with self._slots:
            now = asyncio.get_running_loop().time()
            head = self._known.get(spec.parent)
            least = 0.0 if fresh else _interval(spec.fields[SOURCE])
            if head is None or not head.holds(spec) or now - head.looked_at >= least:
                head = await self._look(spec, head, now)
            if head.content == spec.fields.get(CONTENT):
                head = replace(head, stored=None)
            elif head.stored is not None:
                head = await self._stored(spec, head, head.stored)
            self._known[spec.parent] = head
            return head.outputs(spec)

    async def _stored(self, spec: ComposedSetSpec, head: Head, content: StoredContent) -> Head:
        try:
            await self._contents.store(_namespace(spec), content)
        except PermanentError as error:
            told = GitError("BadCommit", f"{told_revision(head.revision)}: {error}")
            return replace(head, content="", stored=None, problem=told)
        return head

    async def have_moved(self) -> bool:
        """Ask for the refs of all sources that are due, whether one has another commit by now."""
        now = asyncio.get_running_loop().time()
        due = [
            (parent, head)
            for parent, head in self._known.items()
            if now - head.looked_at >= _interval(head.source)
        ]
        moved = await asyncio.gather(*(self._has_moved(*each, now) for each in due))
        return any(moved)

    def forget_others(self, parents: Collection[str]) -> None:
        """Forget the sources that are no more."""
        self._known = {parent: head for parent, head in self._known.items() if parent in parents}

    async def _has_moved(self, parent: str, head: Head, now: float) -> bool:
        async with self._slots:
            try:
                is_same = head.problem is None and await self._is_at(head)
            except GitError as error:
                told = _PASSING.sub("", error.message)
                is_same = head.problem is not None and head.problem.message == told
        self._known[parent] = replace(head, looked_at=now if is_same else float("-inf"))
        return not is_same

    async def _is_at(self, head: Head) -> bool:
        return (await self._find(head.source)).commit == head.revision.get("commit")

    async def _look(self, spec: ComposedSetSpec, known: Head | None, now: float) -> Head:
        """Look closer; what was declared stays where that leads to nothing."""
        head = _of_set(spec, now)
        source = head.source
        try:
            found = await self._find(source)
            for each in (known, head):
                if each is None or each.problem is not None or not each.holds(spec):
                    continue
                if (each.revision.get("commit"), each.revision.get("of")) == (
                    found.commit,
                    _made_from(source),
                ):
                    return replace(each, looked_at=now, set_content=head.set_content)
            return await self._read(spec, head, found)
        except GitError as error:
            revision = head.revision if error.revision is None else error.revision
            content = head.content if error.revision is None else ""
            told = GitError(error.reason, _PASSING.sub("", error.message))
            return replace(head, revision=revision, content=content, problem=told)

    async def _find(self, source: Mapping[str, Any]) -> Found:
        remote = await self._remote(source)
        ref: Mapping[str, Any] = source.get("ref") or {}
        return await self._in_thread(source, lambda: find_commit(remote, ref))

    async def _read(self, spec: ComposedSetSpec, head: Head, found: Found) -> Head:
        remote = await self._remote(head.source)
        had = head.revision.get("commit", "")

        def read() -> tuple[Fields, dict[str, bytes]]:
            return self._fetch(remote, head.source, found, had)

        revision, files = await self._in_thread(head.source, read)
        check, key = await self._check(), ResourceKey.parse(spec.parent)
        try:
            is_rendered = bool(head.source.get("render"))
            parts = await asyncio.to_thread(
                checked_parts, files, key, check, is_rendered=is_rendered
            )
            content = stored_content(spec.parent, parts)
        except (GitError, InvalidManifestError) as error:
            message = f"{told_revision(revision)}: {error}"
            raise GitError("BadCommit", message, revision) from None
        except Exception as error:  # noqa: BLE001 - of one source; the others go on
            told = self._unforeseen(error)
            raise GitError("BadCommit", told.message, revision) from None
        changes = _changes(spec.generations, await self._parts(spec), parts)
        return replace(
            head, revision=revision, content=content.digest, changes=changes, stored=content
        )

    def _fetch(
        self, remote: Remote, source: Mapping[str, Any], found: Found, had: str
    ) -> tuple[Fields, dict[str, bytes]]:
        path, render = str(source.get("path", "")), str(source.get("render", ""))
        with fetched(remote, found.commit) as checkout:
            revision = {**checkout.revision, "ref": found.ref, "of": _made_from(source)}
            if had and not checkout.has_before(had):
                revision["rewritten"] = f"{had[:12]} is not an ancestor"
            try:
                if source.get("signers"):
                    check_signature(checkout.folder, found.commit, str(source["signers"]))
                if not render:
                    return revision, checkout.files(path)
                return revision, rendered(self._renderers, render, checkout.files(""), path)
            except GitError as error:
                message = f"{told_revision(revision)}: {error.message}"
                raise GitError(error.reason, message, revision) from None

    async def _parts(self, spec: ComposedSetSpec) -> list[Part]:
        digest = spec.fields.get(CONTENT)
        return [] if digest is None else await self._contents.load(_namespace(spec), digest) or []

    async def _remote(self, source: Mapping[str, Any]) -> Remote:
        reference, credential = source.get("credentials"), ""
        if reference is not None:
            try:
                credential = await self._secrets.value(msgspec.convert(reference, SecretRef))
            except (ConfigurationError, ProviderError) as error:
                raise GitError("Unreachable", f"spec.credentials: {error}") from None
            # A server may repeat the password without the user.
            self._secrets.secrecy.add(credential.partition(":")[2])
        return Remote(str(source["url"]), credential.strip(), self._timeout_seconds)

    async def _in_thread(self, source: Mapping[str, Any], call: Callable[[], _T]) -> _T:
        """Call what blocks, and wait for it so long at most: a server may drip for ever.

        While it does, nothing else is asked of that source.
        """
        place = _encoder.encode(source).decode()
        late = GitError("Unreachable", f"{source['url']}: no result within {_MAX_SECONDS} s")
        if place in self._hanging:
            raise late
        running = in_daemon_thread(call)
        done, _ = await asyncio.wait({running}, timeout=_MAX_SECONDS)
        if not done:
            self._hanging.add(place)
            running.add_done_callback(lambda _: self._hanging.discard(place))
            raise late
        try:
            return running.result()
        except GitError as error:
            hidden = self._secrets.secrecy.hide(error.message)
            raise GitError(error.reason, hidden, error.revision) from None
        except ConfigurationError as error:
            raise GitError("Unreachable", str(error)) from None
        except Exception as error:  # noqa: BLE001 - a repository may be damaged in any way
            raise self._unforeseen(error) from None

    def _unforeseen(self, error: Exception) -> GitError:
        _logger.warning("reading a source failed", exc_info=True)
        why = self._secrets.secrecy.hide(f"{type(error).__name__}: {error}")
        return GitError("Unreachable", f"reading it failed: {why}")


def in_daemon_thread(call: Callable[[], _T]) -> asyncio.Future[_T]:
    """Call what blocks in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("_T", result))

    def run() -> None:
        try:
            done = partial(settle, call(), None)
        except Exception as error:  # noqa: BLE001 - the future's
            done = partial(settle, None, error)
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(done)

    threading.Thread(target=run, daemon=True, name="git").start()
    return future


def _of_set(spec: ComposedSetSpec, now: float) -> Head:
    """Return what a set itself tells of its source."""
    content = spec.fields.get(CONTENT, "")
    return Head(spec.fields[SOURCE], content, now, spec.fields.get(REVISION, {}), content)


def _changes(inventory: Collection[str], before: list[Part], after: list[Part]) -> Fields:
    """Count what another content changes; what it withdraws, by what was really declared."""
    old, new = (
        {str(each.manifest.key): digest_of(without_name(each.manifest)) for each in parts}
        for parts in (before, after)
    )
    return {
        "added": len(new.keys() - set(inventory)),
        "changed": sum(old[name] != new[name] for name in old.keys() & new.keys()),
        "removed": len(set(inventory) - new.keys()),
        "of": len(inventory),
    }


def _made_from(source: Mapping[str, Any]) -> str:
    """Digest what a content depends on besides the commit."""
    told = [source.get(each) for each in _MADE_FROM]
    return hashlib.blake2b(_encoder.encode(told), digest_size=6).hexdigest()


def _interval(source: Mapping[str, Any]) -> float:
    return float(source.get("intervalSeconds", 60))


def _namespace(spec: ComposedSetSpec) -> str:
    return ResourceKey.parse(spec.parent).namespace
