"""The heads of sources: the current content of their repositories, read once per interval.

Only reads of a set contact its repository. Writes use the known head.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import structlog

from events.allow import Allow
from events.composition import ComposedSetSpec, digest_of, without_name
from events.manifest import Fields, InvalidManifestError
from events.names import ResourceKey
from events.secret import SecretRef
from events.stored_content import CONTENT, HEAD, Part, StoredContent, stored_content
from infra.providers.composition.contents import ContentRefusedError, Contents
from infra.providers.git.checks import (
    MAX_REPORTED_PROBLEMS,
    Check,
    check_parts,
    join_messages,
)
from infra.providers.git.problems import GitError
from infra.providers.git.reader_process import Document, Reply, Request, read_source
from infra.providers.slots import FairSlots, SlotLimits
from reconciler.composites.git_source import PROBLEM, REVISION, SOURCE, describe_revision
from reconciler.errors import (
    ConfigurationError,
    ProviderError,
    RefusedError,
)
from reconciler.provider.secrets import Secrets

READ_LIMITS: Final = SlotLimits(total=4, per_namespace=2, unproven=3, quick_seconds=10.0)
"""Limits on concurrent reads of repositories. A server may delay each read by a minute."""

_LISTING_SECONDS: Final = 2.0
"""Maximum wait in a listing or a check of refs, because slow servers delay the other sources."""

_REQUEST_SECONDS: Final = 10.0
"""Maximum wait in a read of a single source, which delays only objects that are not ready."""

_MAX_SECONDS: Final = 60
_EXPLANATION_SECONDS: Final = 10
_DIGESTED_FIELDS: Final = ("url", "path", "render", "signers")

_VARIABLE_PARTS: Final = re.compile(
    r"(?<![^\s'\"])[^\s'\"]*/reconciler-(?:git|key|render)-\w+/?(?:files/)?| at 0x[0-9a-f]+"
)
"""Parts of a message that differ each time the same error occurs, so each read would report a
change. Paths are matched only from the start of a word, because matching from each letter takes
quadratic time."""

_MAX_MESSAGE_CHARACTERS: Final = 2000
"""Limit on an error message, because a manifest or a server may cause megabytes of text."""

_encoder = msgspec.json.Encoder(order="deterministic")
_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """The result of reading a source, in addition to the content of its set.

    ``stored`` is kept until the set has that content, because a write of older content may withdraw
    it.
    """

    source: Fields
    set_content: str
    read_at: float
    revision: Fields
    content: str = ""
    changes: Fields | None = None
    stored: StoredContent | None = None
    problem: GitError | None = None

    def matches(self, spec: ComposedSetSpec) -> bool:
        """Return whether the head matches the set's source and content."""
        declared = spec.fields.get(CONTENT, "")
        return self.source == spec.fields[SOURCE] and declared in (self.set_content, self.content)

    def outputs(self, spec: ComposedSetSpec) -> Fields:
        """Return the outputs, which change only with the repository."""
        head: Fields = {REVISION: self.revision} if self.revision else {}
        if self.content:
            head[CONTENT] = self.content
        if self.changes and self.content != spec.fields.get(CONTENT):
            head["changes"] = self.changes
        fields: Fields = {HEAD: head} if head else {}
        if self.problem is not None:
            fields[PROBLEM] = {"reason": self.problem.reason, "message": self.problem.message}
        return fields


class Heads:
    """The heads of a provider's sources."""

    def __init__(
        self,
        contents: Contents,
        secrets: Secrets,
        check: Callable[[], Awaitable[Check]],
        *,
        timeout_seconds: float,
        allow: Allow,
    ) -> None:
        self._contents = contents
        self._secrets = secrets
        self._check = check
        self._timeout_seconds = timeout_seconds
        self._allow = allow
        self._known: dict[str, Head] = {}
        self._slots = FairSlots(READ_LIMITS, time.monotonic)
        self._reads: dict[str, asyncio.Task[None]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._interim_outputs: dict[str, Fields] = {}
        self._explanations: dict[str, tuple[str, str, str]] = {}  # commit, message, explanation
        self._has_changes = False

    def known_outputs(self, spec: ComposedSetSpec) -> Fields:
        """Return the outputs of the known head, without a read."""
        head = self._known.get(spec.parent)
        if head is None or not head.matches(spec):
            head = _head_of_set(spec, 0.0)
        return head.outputs(spec)

    async def refresh(self, spec: ComposedSetSpec, *, is_requested: bool) -> Fields:
        """Read a repository after its interval or on request, and return its outputs.

        A slow read continues in the background, so that it does not delay other sources. The
        listing after ``has_new_commits`` returns its result.
        """
        head = self._known.get(spec.parent)
        if (
            not is_requested
            and head is not None
            and head.stored is None
            and not _is_due(head, spec)
        ):
            return head.outputs(spec)
        try:
            async with asyncio.timeout(_REQUEST_SECONDS if is_requested else _LISTING_SECONDS):
                task = self._reads.get(spec.parent)
                if task is not None and is_requested:
                    await asyncio.wait({task})  # it began before the request
                    # another request may have started one since
                    task = self._reads.get(spec.parent)
                task = task or self._start_read(spec, is_requested=is_requested)
                await asyncio.wait({task})
        except TimeoutError:
            self._interim_outputs[spec.parent] = outputs = self.known_outputs(spec)
            return outputs
        if not task.cancelled():  # for example, because the source was withdrawn
            task.result()
        return self.known_outputs(spec)

    def _start_read(self, spec: ComposedSetSpec, *, is_requested: bool) -> asyncio.Task[None]:
        """Start reading a source."""
        task = asyncio.create_task(
            self._update(spec, is_requested=is_requested), name=f"read {spec.parent}"
        )
        self._reads[spec.parent] = task

        def on_end(_task: asyncio.Task[None]) -> None:
            del self._reads[spec.parent]
            if not task.cancelled() and (error := task.exception()) is not None:
                _logger.info("failed to read a source", source=spec.parent, why=str(error))
            interim = self._interim_outputs.pop(spec.parent, None)
            self._has_changes |= interim is not None and interim != self.known_outputs(spec)

        task.add_done_callback(on_end)
        return task

    async def _update(self, spec: ComposedSetSpec, *, is_requested: bool) -> None:
        """Read a source, store its content, and replace the known head."""
        async with self._slots.turn(spec.parent, _namespace(spec)):
            head = self._known.get(spec.parent)
            if is_requested or head is None or _is_due(head, spec):
                head = await self._read(spec, head, asyncio.get_running_loop().time())
            if head.content == spec.fields.get(CONTENT):
                head = replace(head, stored=None)
            elif head.stored is not None:
                head = await self._store_content(spec, head, head.stored)
            self._known[spec.parent] = head

    async def close(self) -> None:
        """Stop all reads."""
        tasks = [*self._reads.values(), *self._checks.values()]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _store_content(
        self, spec: ComposedSetSpec, head: Head, content: StoredContent
    ) -> Head:
        try:
            await self._contents.store(_namespace(spec), content)
        except (RefusedError, ContentRefusedError) as error:
            problem = GitError("BadCommit", f"{describe_revision(head.revision)}: {error}")
            return replace(head, content="", stored=None, problem=problem)
        return head

    async def has_new_commits(self) -> bool:
        """Read the refs of the sources whose interval has passed; return whether any has changed.

        A slow check continues in the background, and a later call returns its result.
        """
        now = asyncio.get_running_loop().time()
        for parent, head in self._known.items():
            is_busy = parent in self._checks or parent in self._reads
            if not is_busy and now - head.read_at >= _interval(head.source):
                check = asyncio.create_task(self._check_refs(parent, head, now))
                self._checks[parent] = check
                check.add_done_callback(lambda _task, name=parent: self._checks.pop(name))
        if self._checks:
            await asyncio.wait([*self._checks.values()], timeout=_LISTING_SECONDS)
        had_changes, self._has_changes = self._has_changes, False
        return had_changes

    @property
    def has_reads(self) -> bool:
        """Whether a read is running or waiting for its slot."""
        return bool(self._reads or self._checks)

    def keep_only_sources(self, parents: Collection[str]) -> None:
        """Discard all other sources, and stop their reads."""
        self._known = {parent: head for parent, head in self._known.items() if parent in parents}
        self._explanations = {
            parent: each for parent, each in self._explanations.items() if parent in parents
        }
        self._slots.keep(parents, {ResourceKey.parse(parent).namespace for parent in parents})
        for parent, task in (*self._reads.items(), *self._checks.items()):
            if parent not in parents:
                task.cancel()

    async def _check_refs(self, parent: str, head: Head, now: float) -> None:
        namespace = ResourceKey.parse(parent).namespace
        async with self._slots.turn(parent, namespace):
            try:
                is_same = head.problem is None and await self._is_at(head, namespace)
            except GitError as error:
                message = stable_message(error.message)
                is_same = head.problem is not None and head.problem.message == message
        if self._known.get(parent) is head:
            self._known[parent] = replace(head, read_at=now if is_same else float("-inf"))
            self._has_changes |= not is_same

    async def _is_at(self, head: Head, namespace: str) -> bool:
        reply = await self._read_source(head.source, namespace=namespace, read_content=False)
        return reply.commit == head.revision.get("commit")

    async def _read(self, spec: ComposedSetSpec, previous: Head | None, now: float) -> Head:
        """Read a repository. If that fails, keep the declared parts."""
        head = _head_of_set(spec, now)
        source_digest = _compute_source_digest(head.source)
        heads_by_commit = {
            each.revision["commit"]: each
            for each in (head, previous)
            if each is not None
            and each.problem is None
            and each.matches(spec)
            and each.revision.get("of") == source_digest
        }
        try:
            reply = await self._read_source(
                head.source,
                namespace=_namespace(spec),
                known=[*heads_by_commit],
                declared=head.revision.get("commit", ""),
                source_digest=source_digest,
            )
            if reply.revision is None:
                return replace(
                    heads_by_commit[reply.commit], read_at=now, set_content=head.set_content
                )
            return await self._check_documents(spec, head, reply)
        except GitError as error:
            revision = head.revision if error.revision is None else error.revision
            content = head.content if error.revision is None else ""
            problem = GitError(error.reason, stable_message(error.message))
            return replace(head, revision=revision, content=content, problem=problem)

    async def _check_documents(self, spec: ComposedSetSpec, head: Head, reply: Reply) -> Head:
        check, key, revision = await self._check(), ResourceKey.parse(spec.parent), reply.revision
        assert revision is not None
        try:
            reads = [each.read_result for each in reply.documents]
            parts = await asyncio.to_thread(check_parts, reads, key, check)
            content = stored_content(spec.parent, parts)
        except (GitError, InvalidManifestError) as error:
            text = str(error)
            if isinstance(error, GitError) and error.problems:
                text = await self._explain(spec, reply.commit, error)
            message = f"{describe_revision(revision)}: {text}"
            raise GitError("BadCommit", message, revision) from None
        except Exception as error:
            _logger.warning("failed to read a source", exc_info=True)
            reason = self._secrets.secrecy.hide(f"{type(error).__name__}: {error}")
            raise GitError("BadCommit", f"it could not be read: {reason}", revision) from None
        changes = _changes(spec.generations, await self._parts(spec), parts)
        return replace(
            head, revision=revision, content=content.digest, changes=changes, stored=content
        )

    async def _explain(self, spec: ComposedSetSpec, commit: str, error: GitError) -> str:
        """Return the message of an invalid commit, with the lines and commits of its fields.

        If they cannot be found, return the message unchanged. A later read of the same commit
        returns the same text.
        """
        source: Fields = spec.fields[SOURCE]
        if source.get("render"):
            return error.message  # the lines are those of the renderer's output
        known = self._explanations.get(spec.parent)
        if known is not None and known[:2] == (commit, error.message):
            return known[2]
        problems = error.problems[:MAX_REPORTED_PROBLEMS]
        documents = [
            Document(each.source.file, each.source.number, each.source.line, None, each.message)
            for each in problems
        ]
        try:
            reply = await self._read_source(
                source,
                namespace=_namespace(spec),
                seconds=_EXPLANATION_SECONDS,
                explained=commit,
                problems=documents,
            )
        except GitError:
            return error.message
        messages = [f"{each.source.location}: {each.message}" for each in error.problems]
        for number, (each, origin) in enumerate(zip(problems, reply.origins, strict=False)):
            since = f" (since {origin.commit})" if origin.commit else ""
            messages[number] = f"{each.source.file}:{origin.line}: {each.message}{since}"
        message = self._secrets.secrecy.hide(join_messages(messages))
        self._explanations[spec.parent] = commit, error.message, message
        return message

    async def _read_source(
        self,
        source: Fields,
        *,
        namespace: str,
        read_content: bool = True,
        known: list[str] | None = None,
        declared: str = "",
        source_digest: str = "",
        seconds: float | None = None,
        explained: str = "",
        problems: list[Document] | None = None,
    ) -> Reply:
        """Read a repository. Raises ``GitError`` for content that cannot be read or declared."""
        credential, former_credentials = await self._credential(source, namespace)
        reply = await read_source(
            Request(
                source,
                namespace,
                credential,
                self._timeout_seconds,
                _MAX_SECONDS if seconds is None else seconds,
                self._allow,
                read_content=read_content,
                known=known or [],
                declared=declared,
                source_digest=source_digest,
                former_credentials=former_credentials,
                explained=explained,
                problems=problems or [],
            )
        )
        if reply.failure is None:
            return reply
        failure, hide = reply.failure, self._secrets.secrecy.hide
        if failure.trace:
            _logger.warning("failed to read a source", trace=hide(failure.trace))
        # Remove variable parts first, because a secret that contains one would not be found.
        message = hide(remove_variable_parts(failure.message))
        raise GitError(failure.reason, message, failure.revision)

    async def _parts(self, spec: ComposedSetSpec) -> list[Part]:
        digest = spec.fields.get(CONTENT)
        return [] if digest is None else await self._contents.load(_namespace(spec), digest) or []

    async def _credential(self, source: Fields, namespace: str) -> tuple[str, list[str]]:
        """Return the credential of a source, and its former values that this process has read."""
        reference = source.get("credentials")
        if reference is None:
            return "", []
        try:
            secret_ref = msgspec.convert(reference, SecretRef)
            credential = await self._secrets.value(secret_ref, namespace)
        except (ConfigurationError, ProviderError) as error:
            raise GitError("Unreachable", f"spec.credentials: {error}") from None
        return credential.strip(), self._secrets.known_values(secret_ref, namespace)


def _is_due(head: Head, spec: ComposedSetSpec) -> bool:
    now = asyncio.get_running_loop().time()
    return not head.matches(spec) or now - head.read_at >= _interval(spec.fields[SOURCE])


def _head_of_set(spec: ComposedSetSpec, now: float) -> Head:
    """Return the head that a set records."""
    content = spec.fields.get(CONTENT, "")
    return Head(spec.fields[SOURCE], content, now, spec.fields.get(REVISION, {}), content)


def _changes(inventory: Collection[str], old_parts: list[Part], new_parts: list[Part]) -> Fields:
    """Count the parts that are added and changed, and the declared resources that are removed."""
    old, new = (
        {str(each.manifest.key): digest_of(without_name(each.manifest)) for each in parts}
        for parts in (old_parts, new_parts)
    )
    return {
        "added": len(new.keys() - set(inventory)),
        "changed": sum(old[name] != new[name] for name in old.keys() & new.keys()),
        "removed": len(set(inventory) - new.keys()),
        "of": len(inventory),
    }


def _compute_source_digest(source: Mapping[str, Any]) -> str:
    """Return a digest of everything that the content depends on except the commit."""
    values = [source.get(each) for each in _DIGESTED_FIELDS]
    return hashlib.blake2b(_encoder.encode(values), digest_size=6).hexdigest()


def _interval(source: Mapping[str, Any]) -> float:
    return float(source.get("intervalSeconds", 60))


def _namespace(spec: ComposedSetSpec) -> str:
    return ResourceKey.parse(spec.parent).namespace


def stable_message(message: str) -> str:
    """Return the start of an error message, without its variable parts."""
    return remove_variable_parts(message[:_MAX_MESSAGE_CHARACTERS])


def remove_variable_parts(message: str) -> str:
    """Return an error message without the parts that differ each time the same error occurs."""
    return _VARIABLE_PARTS.sub("", message)
