"""The ``GitSource`` kind: declares all resources in a commit of a Git repository (ADR 0053).

An observer resolves the ref, verifies and renders the commit, and checks its manifests. The result
is the ``head`` output. The functions in this module are pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from events.composition import CHILDREN, Child
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError
from events.names import InvalidNameError, ResourceKey
from events.reference import MAX_REFERENCES, Reference
from events.secret import SecretRef
from events.stored_content import CONTENT, HEAD
from reconciler.composites import stored
from reconciler.composites.stored import StoredOutputs
from reconciler.provider.host_access import HostUse, format_address, names_host, url_host
from reconciler.provider.kind import Readiness, Removal

KIND: Final = "GitSource"
SOURCE: Final = "source"
REVISION: Final = "revision"
PROBLEM: Final = "problem"
SCHEMES: Final = ("https", "ssh", "file", "http")
PORTS: Final = {"https": 443, "http": 80, "ssh": 22}

_about = msgspec.Meta
_SIGNER: Final = re.compile(r"\S+\s+(?:\S+\s+)?(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-\S+\s+\S{20}")
_DEPENDS_ON: Final = "dependsOn"
_Ref = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\s:?\[\\^~]+(?!\n)$")]


class Ref(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commit to declare. Default: the newest commit of the default branch."""

    branch: Annotated[
        _Ref | None, _about(description="Branch whose newest commit is declared.")
    ] = None
    tag: Annotated[_Ref | None, _about(description="Tag whose commit is declared.")] = None
    semver: Annotated[
        str | None,
        _about(
            description="Version range, such as `^1.2` or `>=1.2 <2`. The tag with the highest "
            "version in the range is declared."
        ),
    ] = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.branch, self.tag, self.semver)) > 1:
            raise ValueError("branch, tag, semver: set only one of them")


class GitSourceFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Resources declared in a Git repository."""

    url: Annotated[
        str,
        _about(
            description="URL of the repository (https, http, ssh or file), without credentials."
        ),
    ]
    ref: Annotated[
        Ref,
        _about(
            description="Commit to declare: one of branch, tag and semver. Default: the "
            "default branch."
        ),
    ] = Ref()
    path: Annotated[
        str,
        _about(
            description="Directory of the manifests, or a single file. Default: the whole "
            "repository."
        ),
    ] = ""
    interval_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=86_400)],
        _about(description="Seconds between checks of the repository."),
    ] = 60
    credentials: Annotated[
        SecretRef | None,
        _about(
            description="Reference to a secret, {$secret: NAME}: a token, USER:PASSWORD, or a"
            " private key for ssh."
        ),
    ] = None
    signers: Annotated[
        str,
        _about(
            description="Accepted signers of the commit, in the format of "
            "gpg.ssh.allowedSignersFile. Default: no signature is required."
        ),
    ] = ""
    render: Annotated[
        str,
        _about(
            description="Name of a renderer that generates the manifests from the directory. "
            "The operator of the roles configures the renderers."
        ),
    ] = ""
    depends_on: Annotated[
        list[str],
        _about(
            description="Resources in the namespace, as KIND/NAME, that must have been ready "
            "before the first commit is declared."
        ),
    ] = []

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "file"):
            raise ValueError(f"url: must start with one of {', '.join(SCHEMES)}, followed by ://")
        if parts.password or parts.query or (parts.username and parts.scheme != "ssh"):
            raise ValueError(
                "url: must not contain credentials or a query, because the log keeps it; use "
                "spec.credentials"
            )
        for line in filter(None, map(str.strip, self.signers.splitlines())):
            if not line.startswith("#") and _SIGNER.match(line) is None:
                raise ValueError(
                    "signers: each line must be an allowed signer, such as `ann@example.org "
                    "ssh-ed25519 AAAA…`"
                )
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                "path: must be a directory in the repository, such as deploy/production"
            )


class GitSourceOutputs(StoredOutputs, frozen=True, rename="camel"):
    """Declared commit (``revision``), newest commit (``head``), and why it is not declared."""

    url: Annotated[str, msgspec.Meta(description="URL of the repository.")] = ""
    revision: Annotated[
        dict[str, Any],
        msgspec.Meta(description="Declared commit: commit, author, time, subject and ref."),
    ] = {}  # noqa: RUF012 - msgspec copies it
    head: Annotated[
        dict[str, Any],
        msgspec.Meta(description="Newest commit, and its changes while it is not declared."),
    ] = {}  # noqa: RUF012 - msgspec copies it
    problem: Annotated[
        dict[str, str], msgspec.Meta(description="Reason why the newest commit is not declared.")
    ] = {}  # noqa: RUF012 - msgspec copies it


def compose(_key: ResourceKey, spec: Fields, observed: ExternalObject | None) -> Fields:
    """Return the content of the newest valid commit, or else the current content."""
    source = {name: value for name, value in spec.items() if name != _DEPENDS_ON}
    if observed is None:
        return {SOURCE: source, CHILDREN: {}}
    current = observed.fields
    head: Mapping[str, Any] = observed.outputs.get(HEAD, {})
    is_unchanged = head.get(CONTENT) in (None, current.get(CONTENT))
    if current.get(SOURCE) == source and not is_unchanged:
        return {SOURCE: source, REVISION: head[REVISION], CONTENT: head[CONTENT]}
    if CONTENT in current:
        return {SOURCE: source, REVISION: current.get(REVISION, {}), CONTENT: current[CONTENT]}
    return {SOURCE: source, CHILDREN: {}}


def find_host_uses(spec: Fields) -> Sequence[HostUse]:
    """Return the host's repositories and renderers that a source uses (ADR 0060).

    A host name is checked again at each connection, when it is resolved.
    """
    host_uses = list(repository_uses(str(spec["url"])))
    if spec.get("render"):
        host_uses.append(HostUse("spec.render", "renderers", str(spec["render"])))
    return host_uses


def repository_uses(url: str) -> Sequence[HostUse]:
    """Return the repository or address of the host that a URL names."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        host = "" if parts.netloc in ("", "localhost") else parts.netloc
        return (HostUse("spec.url", "addresses", f"file://{host}{unquote(parts.path)}"),)
    host, port = url_host(url, PORTS.get(parts.scheme, 0))
    return (
        (HostUse("spec.url", "addresses", format_address(host, port)),) if names_host(host) else ()
    )


def summary(fields: Fields, children: Mapping[str, Child]) -> Fields:
    """Return the counts of the resources, the URL of the repository and the declared commit."""
    repository = {"url": fields.get(SOURCE, {}).get("url", ""), REVISION: fields.get(REVISION, {})}
    return {**stored.summary(fields, children), **repository}


def ready(fields: Fields, existing: ExternalObject) -> Readiness:
    """Return whether the newest commit is declared and all of its resources are ready."""
    problem: Mapping[str, str] = existing.outputs.get(PROBLEM, {})
    if problem:
        applied = (
            f"; {describe_revision(fields[REVISION])} stays applied" if CONTENT in fields else ""
        )
        return Readiness(False, problem["reason"], f"{problem['message']}{applied}")
    if CONTENT not in fields:
        return Readiness(False, "Progressing", "waiting for the first read of the repository")
    return stored.ready(fields, existing)


def count_removed(fields: Fields, existing: ExternalObject) -> Removal:
    """Return the number of resources that a commit would withdraw, and the total number."""
    head: Mapping[str, Any] = existing.outputs.get(HEAD, {})
    if fields.get(CONTENT) in (None, existing.fields.get(CONTENT)):
        return Removal()
    changes: Mapping[str, int] = head.get("changes", {})
    changed_by = describe_revision(fields[REVISION])
    return Removal(changes.get("removed", 0), changes.get("of", 0), changed_by)


def find_references(fields: Fields, namespace: str) -> Sequence[Reference]:
    """Return the resources that must be ready first. Raises ``InvalidManifestError``."""
    references: list[Reference] = []
    for target in fields.get(_DEPENDS_ON, ()):
        try:
            key = ResourceKey.parse(f"{namespace}/{target}")
        except InvalidNameError as error:
            raise InvalidManifestError(f"spec.dependsOn: {error}") from None
        references.append(Reference(str(key), (), "Ignore"))
    if len(references) > MAX_REFERENCES:
        raise InvalidManifestError(
            f"spec.dependsOn: names more than {MAX_REFERENCES} resources; use fewer"
        )
    return tuple(references)


def describe_revision(revision: Mapping[str, Any]) -> str:
    """Return a description of a commit: its short id and its author."""
    author = revision.get("author", "an unknown author")
    return f"commit {str(revision.get('commit', ''))[:12]} by {author}"
