"""Read a remote repository without a checkout: its refs, a commit, the files in a folder.

All functions block, and run in a separate process.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

import semantic_version
from dulwich.client import GitClient, default_urllib3_manager, get_transport_and_path
from dulwich.config import ConfigDict
from dulwich.objects import Commit, ObjectID, Tag
from dulwich.refs import Ref
from dulwich.repo import Repo
from urllib3 import PoolManager, ProxyManager
from urllib3.util import Retry

from events.allow import NOTHING, Allow
from events.manifest import Fields
from infra.providers.git.commit_tree import CommitTree
from infra.providers.git.packs import LimitedStore
from infra.providers.git.problems import GitError
from infra.providers.guarded_urllib3 import guard_pools
from infra.providers.host_guard import HostGuard
from reconciler.composites.git_source import PORTS, repository_uses
from reconciler.provider.host_access import find_refused_use, url_host
from reconciler.secrecy import SplitLogin, split_login

MAX_FETCHED_COMMITS: Final = 50
"""Number of commits to fetch in order to find the previous commit among the new one's ancestors."""

_BRANCHES: Final = b"refs/heads/"
_TAGS: Final = b"refs/tags/"
_PEELED: Final = b"^{}"
_KEY_MARK: Final = "PRIVATE KEY-----"
_MAX_TEXT_CHARACTERS: Final = 200
_ISOLATION_OPTIONS: Final = "-F none -o IdentityAgent=none -o IdentitiesOnly=yes"


@dataclass(frozen=True, slots=True)
class Remote:
    """The location of a repository.

    ``credential`` is ``USER:PASSWORD``, a token or a private key. ``allow`` lists the permitted
    uses of the host.
    """

    url: str
    credential: str = ""
    timeout_seconds: float = 10.0
    allow: Allow = NOTHING

    @property
    def guard(self) -> HostGuard:
        """The connection guard. The URL comes from a declaration, not from an operator."""
        return HostGuard(self.allow)


@dataclass(frozen=True, slots=True)
class ResolvedRef:
    """The commit of a ref."""

    ref: str
    commit: str


def find_commit(remote: Remote, ref: Mapping[str, Any]) -> ResolvedRef:
    """Read the commit of a ref. Raises ``GitError``."""
    with _client(remote) as (client, path):
        all_refs = client.get_refs(path).refs
        refs: dict[bytes, bytes] = {name: sha for name, sha in all_refs.items() if sha is not None}
    if ref.get("tag"):
        return _tag(refs, str(ref["tag"]).removeprefix(_TAGS.decode()))
    if ref.get("semver"):
        return _newest_tag(refs, str(ref["semver"]))
    branch = str(ref.get("branch") or "").removeprefix(_BRANCHES.decode())
    name = _BRANCHES + branch.encode() if branch else b"HEAD"
    if name not in refs:
        problem = f"no branch {branch!r}" if branch else "no commit on a default branch"
        raise GitError("RefGone", f"{remote.url} has {problem}")
    return ResolvedRef(branch or "HEAD", refs[name].decode())


@contextmanager
def fetch(remote: Remote, commit: str) -> Generator[Checkout]:
    """Fetch a commit and some ancestors for the duration of the block. Raises ``GitError``."""
    object_id = ObjectID(commit.encode())

    def wants(refs: Mapping[Ref, ObjectID], depth: int | None = None) -> list[ObjectID]:
        del refs, depth
        return [object_id]

    with (
        tempfile.TemporaryDirectory(prefix="reconciler-git-") as folder,
        _init_repository(folder) as repository,
    ):
        with _client(remote) as (client, path):
            client.fetch(path, repository, wants, depth=MAX_FETCHED_COMMITS)
        git_object = repository[object_id]
        while isinstance(git_object, Tag):
            git_object = repository[git_object.object[1]]
        if not isinstance(git_object, Commit):
            raise GitError("RefGone", f"{commit} is not a commit")
        yield Checkout(Path(folder), repository, git_object)


def _init_repository(folder: str) -> Repo:
    """Create a bare repository that rejects data beyond the limits."""
    Repo.init_bare(folder).close()
    return Repo(folder, LimitedStore(Path(folder) / "objects"), bare=True)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit in a temporary bare repository."""

    folder: Path
    repository: Repo
    commit: Commit

    @property
    def revision(self) -> Fields:
        """The author, time and message of the commit."""
        commit = self.commit
        author_time = datetime.fromtimestamp(commit.author_time, UTC)
        return {
            "commit": commit.id.decode(),
            "author": commit.author.decode(errors="replace")[:_MAX_TEXT_CHARACTERS],
            "time": author_time.isoformat().replace("+00:00", "Z"),
            "subject": _subject(commit.message),
        }

    def first_parents(self) -> Iterator[tuple[str, CommitTree]]:
        """Iterate over the fetched commits from this one along first parents, with their files."""
        commit: Commit | None = self.commit
        while commit is not None:
            yield commit.id.decode(), CommitTree(self.repository.object_store, commit.tree)
            commit = self._commit_of(commit.parents[0]) if commit.parents else None

    def has_root(self, commit: str) -> bool:
        """Return whether a commit is the first one of the history."""
        found = self._commit_of(ObjectID(commit.encode())) if commit else None
        return found is not None and not found.parents

    def describe(self, commit: str) -> Fields:
        """Return the id and the author of a fetched commit."""
        found = self._commit_of(ObjectID(commit.encode()))
        author = "" if found is None else found.author.decode(errors="replace")
        return {"commit": commit, "author": author[:_MAX_TEXT_CHARACTERS]}

    def _commit_of(self, object_id: ObjectID) -> Commit | None:
        if object_id not in self.repository.object_store:
            return None
        git_object = self.repository[object_id]
        return git_object if isinstance(git_object, Commit) else None

    def has_ancestor(self, commit: str) -> bool:
        """Return whether a commit is an ancestor of this one, or equal to it."""
        walker = self.repository.get_walker([self.commit.id])
        return any(each.commit.id.decode() == commit for each in walker)

    @property
    def tree(self) -> CommitTree:
        """The files of the commit."""
        return CommitTree(self.repository.object_store, self.commit.tree)

    def tree_of(self, commit: str) -> CommitTree | None:
        """Return the files of an earlier commit, or None if it was not fetched."""
        found = self._commit_of(ObjectID(commit.encode())) if commit else None
        return None if found is None else CommitTree(self.repository.object_store, found.tree)


@contextmanager
def _client(remote: Remote) -> Generator[tuple[GitClient, bytes]]:
    """Open a client. Failures and forbidden addresses raise ``GitError`` as ``Unreachable``."""
    forbidden = find_refused_use(repository_uses(remote.url), remote.allow)
    if forbidden is not None:
        raise GitError(
            "Unreachable",
            f"{remote.url}: not allowed by spec.allow.addresses of the ProviderConfig",
        )
    scheme = urlsplit(remote.url).scheme
    options: dict[str, Any] = {}
    empty_config = ConfigDict()  # without any user's configuration
    with _open_memory_file() as key:
        if scheme in ("http", "https"):
            if remote.credential:
                login = split_login(remote.credential) or SplitLogin("git", remote.credential)
                options = {"username": login.user, "password": login.password}
            pool = default_urllib3_manager(
                empty_config, base_url=remote.url, timeout=remote.timeout_seconds
            )
            # the next read retries
            pool.connection_pool_kw["retries"] = Retry(connect=0, read=0, other=0, status=0)
            assert isinstance(pool, PoolManager)
            # with a proxy, the proxy resolves names and connects
            if not isinstance(pool, ProxyManager):
                guard_pools(pool, remote.guard)
            options["pool_manager"] = pool
        if scheme == "ssh":
            options = _ssh_options(remote, key)
        try:
            client, path = get_transport_and_path(
                remote.url, config=empty_config, quiet=True, thin_packs=False, **options
            )
            yield client, path.encode()
        except (GitError, MemoryError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise GitError("Unreachable", f"{remote.url}: {reason}") from error


def _open_memory_file() -> BinaryIO:
    """Open an unnamed file, in memory where possible, so that a crash does not leave it behind."""
    if sys.platform != "linux":
        return cast("BinaryIO", tempfile.NamedTemporaryFile(prefix="reconciler-key-"))
    descriptor = os.memfd_create("key")
    os.fchmod(descriptor, 0o600)  # otherwise ssh refuses the key
    return os.fdopen(descriptor, "w+b")


def ssh_command(remote: Remote) -> str:
    """Return a command that connects to a server's resolved address.

    ssh checks the host key of the server's name, but does not resolve the name again. It ignores
    the configuration, keys and agent of the process's account, because with them, every tenant
    could read what only the account may read.
    Raises ``GitError`` if the name has no address, or resolves to the host itself.
    """
    host, port = url_host(remote.url, PORTS["ssh"])
    try:
        address = str(remote.guard.resolve(host, port)[0][4][0])
    except OSError as error:
        raise GitError("Unreachable", f"{remote.url}: {error}") from None
    alias = host if port == PORTS["ssh"] else f"[{host}]:{port}"
    connect_timeout = max(1, int(remote.timeout_seconds))
    options = f"{_ISOLATION_OPTIONS} -o BatchMode=yes -o ConnectTimeout={connect_timeout}"
    return f"ssh {options} -o HostName={shlex.quote(address)} -o HostKeyAlias={shlex.quote(alias)}"


def _ssh_options(remote: Remote, key: BinaryIO) -> dict[str, Any]:
    command = ssh_command(remote)
    if _KEY_MARK not in remote.credential:
        return {"ssh_command": f"{command} -o PubkeyAuthentication=no"}
    key.write((remote.credential.strip() + "\n").encode())
    key.flush()
    is_named = sys.platform != "linux"
    file = key.name if is_named else f"/proc/{os.getpid()}/fd/{key.fileno()}"
    return {"ssh_command": command, "key_filename": file}


def _tag(refs: Mapping[bytes, bytes], name: str) -> ResolvedRef:
    ref = _TAGS + name.encode()
    object_id = refs.get(ref + _PEELED) or refs.get(ref)
    if object_id is None:
        raise GitError("RefGone", f"tag {name!r} does not exist")
    return ResolvedRef(name, object_id.decode())


def _newest_tag(refs: Mapping[bytes, bytes], version_range: str) -> ResolvedRef:
    try:
        allowed: Any = semantic_version.NpmSpec(version_range)
    except ValueError:
        raise GitError(
            "RefGone",
            f"spec.ref.semver: {version_range!r} is not a version range; use one such as ^1.2",
        ) from None
    versions: dict[Any, str] = {}
    for ref in refs:
        name = ref.removeprefix(_TAGS).removesuffix(_PEELED).decode(errors="replace")
        if ref.startswith(_TAGS) and (version := _version(name)) is not None:
            versions[version] = name
    newest: Any = allowed.select(versions)
    if newest is None:
        raise GitError("RefGone", f"no tag is a version in the range {version_range!r}")
    return _tag(refs, versions[newest])


def _version(tag: str) -> semantic_version.Version | None:
    """Parse a tag such as v1.2.3; None if it is not a version."""
    try:
        return semantic_version.Version(tag.removeprefix("v"))
    except ValueError:
        return None


def _subject(message: bytes) -> str:
    text = message.decode(errors="replace").strip()
    return text.splitlines()[0][:_MAX_TEXT_CHARACTERS] if text else ""
