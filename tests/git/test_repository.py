"""Repositories are read over HTTP with a password, and from a folder."""

from __future__ import annotations

import asyncio
import shlex
import socket
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

from events.allow import Allow
from events.manifest import Manifest
from events.names import ResourceKey
from infra.providers.git.checks import check_parts, documents_in
from infra.providers.git.problems import GitError
from infra.providers.git.reader_process import (
    Document,
    Failure,
    Origin,
    Request,
    read_source,
)
from infra.providers.git.repository import (
    MAX_FETCHED_COMMITS,
    Remote,
    _ssh_options,  # pyright: ignore[reportPrivateUsage]
    fetch,
    find_commit,
    ssh_command,
)
from infra.providers.git.signatures import check_signature
from reconciler.provider.kind import KindRegistry
from shapes_api.kinds.shapes import SHAPE
from tests.git.http_server import GitServer
from tests.git.repositories import Repository, signing_key
from tests.host_access import EVERYTHING

SHOP = ResourceKey("default", "GitSource", "shop")
PASSWORD = "a token of forty characters, or nearly"


ALIASES = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefgh")
)
"""Ten times ten times ten … values."""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "served" / "shop")


def files(remote: Remote, path: str = "", **ref: str) -> dict[str, bytes]:
    with fetch(remote, find_commit(remote, ref).commit) as checkout:
        return checkout.tree.files(path)


def check_content(content: dict[str, bytes]) -> None:
    reads = [*documents_in(content, SHOP.namespace)]
    check_parts(reads, SHOP, KindRegistry([SHAPE]).check)


@pytest.mark.parametrize("namespace_field", ["", ", namespace: default"])
def test_a_tenants_definition_is_refused_before_it_is_checked(namespace_field: str):
    """A check compiles its expressions, which could take any amount of time."""
    text = "apiVersion: reconciler/v1\nkind: KindDefinition\nmetadata: {name: Foo%s}\n"
    text += "spec: {apiVersion: foo/v1, provider: foo, over: Shape, fields: {}}\n"
    checked: list[str] = []
    kinds = KindRegistry([SHAPE])

    def check(manifest: Manifest) -> None:
        kinds.check(manifest)
        checked.append(manifest.metadata.name)

    reads = [*documents_in({"a.yaml": (text % namespace_field).encode()}, SHOP.namespace)]
    with pytest.raises(GitError, match="namespace"):
        check_parts(reads, SHOP, check)
    assert not checked


async def test_a_repository_is_read_over_http_with_a_password(repository: Repository):
    repository.write({"deploy/a.yaml": "a", "b.yaml": "b"})
    repository.commit()
    async with GitServer(repository.folder.parent, PASSWORD).serving() as server:
        url = f"http://127.0.0.1:{server.port}/shop"
        for credential in (PASSWORD, f"git:{PASSWORD}"):
            contents = await asyncio.to_thread(
                files, Remote(url, credential, allow=EVERYTHING), "deploy"
            )
            assert contents == {"deploy/a.yaml": b"a"}
        for remote in (
            Remote(url, "wrong", allow=EVERYTHING),
            Remote(url, allow=EVERYTHING),
            Remote(f"{url}-not", PASSWORD, allow=EVERYTHING),
            Remote("http://127.0.0.1:1/shop", PASSWORD, 1.0, EVERYTHING),
            Remote("ssh://127.0.0.1:1/shop", "", 1.0, EVERYTHING),
            Remote("file:///nowhere/at/all", allow=EVERYTHING),
        ):
            with pytest.raises(GitError) as raised:
                await asyncio.to_thread(files, remote)
            assert raised.value.reason == "Unreachable"
            assert PASSWORD not in raised.value.message


def test_refs_are_found_or_named(repository: Repository):
    first = repository.commit()
    repository.git("tag", "v1.0.0")
    repository.git("checkout", "--quiet", "-b", "other/branch")
    second = repository.commit()
    repository.git("tag", "-a", "1.1.0-rc.1", "-m", "soon")
    repository.git("tag", "nightly")
    remote = Remote(repository.url, allow=EVERYTHING)
    assert find_commit(remote, {}).commit == second
    assert find_commit(remote, {"branch": "main"}).commit == first
    assert find_commit(remote, {"branch": "other/branch"}).commit == second
    assert find_commit(remote, {"tag": "nightly"}).commit == second
    assert find_commit(remote, {"semver": "1.x"}).ref == "v1.0.0"
    with fetch(remote, find_commit(remote, {"tag": "1.1.0-rc.1"}).commit) as checkout:
        assert checkout.revision["commit"] == second
    for ref, message in (
        ({"branch": "gone"}, "has no branch 'gone'"),
        ({"tag": "gone"}, "tag 'gone' does not exist"),
        ({"semver": ">=3"}, "no tag is a version in the range '>=3'"),
        ({"semver": "soon"}, "'soon' is not a version range"),
    ):
        with pytest.raises(GitError, match=message) as raised:
            find_commit(remote, ref)
        assert raised.value.reason == "RefGone"


def test_ancestors_are_found(repository: Repository):
    first = repository.commit()
    second = repository.commit()
    with fetch(Remote(repository.url, allow=EVERYTHING), second) as checkout:
        assert checkout.has_ancestor(first)
        assert not checkout.has_ancestor("0" * 40)


def test_only_a_signature_by_a_listed_signer_is_accepted(repository: Repository, tmp_path: Path):
    key, signer = signing_key(tmp_path)
    _, other_signer = signing_key(tmp_path, "another")
    repository.git("config", "gpg.format", "ssh")
    repository.git("config", "user.signingkey", str(key))
    signed = repository.commit("signed", "-S")
    unsigned = repository.commit("unsigned")
    remote = Remote(repository.url, allow=EVERYTHING)
    with fetch(remote, signed) as checkout:
        check_signature(checkout.folder, signed, signer)
        with pytest.raises(GitError, match=r"no signer in spec\.signers"):
            check_signature(checkout.folder, signed, other_signer)
    with fetch(remote, unsigned) as checkout, pytest.raises(GitError) as raised:
        check_signature(checkout.folder, unsigned, signer)
    assert raised.value.reason == "Unsigned"


def test_every_document_is_checked_and_the_first_few_problems_are_reported():
    good = b"apiVersion: shapes/v1\nkind: Shape\nmetadata: {name: a}\nspec: {type: Square}\n"
    content = {
        "a.yaml": good.replace(b"type: Square", b"type: Square, color: Red"),
        "b.yaml": b"# nothing but words\n---\n---\n- 1\n",
        "c.json": b"{",
        "d.yaml": b"\xff",
        "e.yaml": good,
        "f.yaml": b"a: [",
        "g.yaml": good.replace(b"Shape", b"Shap"),
        "notes.txt": b"\xff",
    }
    with pytest.raises(GitError) as raised:
        check_content(content)
    message = raised.value.message
    assert message.startswith(
        "b.yaml:4: a manifest must be a mapping, not int; c.json:1: invalid JSON"
    )
    assert "d.yaml:1: not UTF-8 text" in message
    assert "e.yaml:1: default/Shape/a is already declared in a.yaml:1" in message
    assert "f.yaml:1: invalid YAML: line 2, column 1" in message
    assert message.endswith("; 1 more")
    with pytest.raises(GitError, match="no manifests"):
        check_content({"notes.txt": b""})


def test_a_tree_with_a_path_outside_the_repository_is_refused(repository: Repository):
    repository.write({"deploy/a.yaml": "a"})
    repository.commit()
    blob = repository.git("rev-parse", "HEAD:deploy/a.yaml").strip()
    tree = b"100644 stolen\0" + bytes.fromhex(blob)
    for _ in range(2):
        sha = repository.store("tree", tree)
        tree = b"40000 ..\0" + bytes.fromhex(sha)
    root = repository.store("tree", tree)
    commit = repository.git("commit-tree", root, "-m", "out").strip()
    repository.git("update-ref", "refs/heads/main", commit)
    with pytest.raises(GitError, match="is not a valid file name"):
        files(Remote(repository.url, allow=EVERYTHING))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deep"),
        ("- " * 100_000, "nested too deep"),
        ("kind: A\nspec: {}\nkind: B\n", "line 3: duplicate key 'kind'"),
        ("color: 2024-13-45\n", "invalid value"),
        ("n: !!int abc\n", "invalid value"),
        ("n: !!bool maybe\n", "invalid value"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{n}: &{n} [{', '.join([f'*{chr(ord(n) - 1)}'] * 10)}]\n" for n in "bcdefgh"
            ),
            "the document's aliases expand to more than 200000 values",
        ),
        (
            "a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 1000 + "]\n",
            "the document's aliases expand to more than 16777216 characters",
        ),
    ],
)
def test_an_excessive_document_is_refused_before_it_is_built(text: str, message: str):
    with pytest.raises(GitError, match=message):
        check_content({"a.yaml": text.encode()})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "[::1]", "0"])
@pytest.mark.parametrize("scheme", ["http", "https", "ssh"])
async def test_no_repository_on_the_host_is_read_unless_allowed(scheme: str, host: str):
    connections: list[int] = []

    async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        url = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}/shop"
        with pytest.raises(GitError) as raised:
            await asyncio.to_thread(find_commit, Remote(url, timeout_seconds=2), {})
        assert raised.value.reason == "Unreachable"
        assert "spec.allow.addresses" in raised.value.message
        assert connections == []
        if host == "127.0.0.1":
            allowed = Remote(url, timeout_seconds=2, allow=Allow(addresses=("127.0.0.1:*",)))
            with pytest.raises(GitError):
                await asyncio.to_thread(find_commit, allowed, {})
            assert connections


def test_no_folder_on_the_host_is_read_unless_allowed(repository: Repository):
    repository.commit()
    folder = repository.folder.parent
    for allow in (Allow(), Allow(addresses=(f"file://{folder}",))):
        with pytest.raises(GitError, match=r"spec\.allow\.addresses"):
            find_commit(Remote(repository.url, allow=allow), {})
    assert find_commit(Remote(repository.url, allow=Allow(addresses=(f"file://{folder}/*",))), {})
    escaping_url = f"file://{folder}/x/../shop"
    with pytest.raises(GitError, match=r"spec\.allow\.addresses"):
        find_commit(Remote(escaping_url, allow=Allow(addresses=("**",))), {})


def test_ssh_connects_to_the_checked_address(monkeypatch: pytest.MonkeyPatch):
    def resolve(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 2222))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    arguments = shlex.split(ssh_command(Remote("ssh://git@git.test:2222/x")))
    assert "HostName=192.0.2.7" in arguments
    assert "HostKeyAlias=[git.test]:2222" in arguments


@pytest.mark.parametrize("credential", ["", "a-token", "-----BEGIN OPENSSH PRIVATE KEY-----"])
def test_ssh_does_not_use_the_keys_or_configuration_of_the_roles_account(credential: str):
    """Otherwise a tenant could read what only the account may read, or run its ProxyCommand."""
    with tempfile.TemporaryFile() as key:
        options = _ssh_options(Remote("ssh://git@192.0.2.7/x", credential), key)
    ssh_options = subprocess.run(
        [*shlex.split(options["ssh_command"]), "-G", "192.0.2.7"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    has_key = "key_filename" in options
    assert has_key is credential.startswith("-----BEGIN")
    assert "identityagent none" in ssh_options
    assert "identitiesonly yes" in ssh_options
    assert ("pubkeyauthentication true" in ssh_options) is has_key
    assert shlex.split(options["ssh_command"])[1:3] == ["-F", "none"]


FOLDED_PASSWORD = "\\\n    ".join(PASSWORD[at : at + 9] for at in range(0, len(PASSWORD), 9))
"""YAML joins the lines of a quoted string."""

MANIFEST = """\
apiVersion: shapes/v1
kind: Shape
metadata: {{name: foo}}
spec:
  color: "{}"
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", PASSWORD),
        ("a.yaml", f"a: git:{PASSWORD}"),
        ("a.yaml", PASSWORD.replace(" ", "%20")),
        ("a.yaml", FOLDED_PASSWORD),
        (f"{PASSWORD}.yaml", "Blue"),
        (f"{PASSWORD}/a.yaml", "Blue"),
    ],
)
async def test_a_commit_that_contains_its_servers_credential_is_refused(
    repository: Repository, name: str, text: str
):
    repository.write({"b.yaml": MANIFEST.format("Blue"), name: MANIFEST.format(text)})
    repository.commit()
    source = {"url": repository.url}

    async def read_failure(credential: str, *former_credentials: str) -> Failure | None:
        request = Request(
            source,
            "default",
            credential,
            10,
            60,
            EVERYTHING,
            former_credentials=[*former_credentials],
        )
        return (await read_source(request)).failure

    for credentials in ((f"git:{PASSWORD}",), ("git:another token", f"git:{PASSWORD}")):
        failure = await read_failure(*credentials)
        assert failure is not None
        assert failure.reason == "BadCommit"
        assert failure.message.endswith("contains this source's credential")
    assert await read_failure("") is None
    assert await read_failure("git:another token") is None


async def origins_of(
    repository: Repository, problem: str, *, file: str = "a.yaml", line: int = 1
) -> list[Origin]:
    documents = [Document(file, 1, line, None, problem)]
    request = Request(
        {"url": repository.url},
        SHOP.namespace,
        "",
        10,
        60,
        EVERYTHING,
        explained=repository.head,
        problems=documents,
    )
    reply = await read_source(request)
    assert reply.failure is None
    return reply.origins


SHAPE_LINES = "apiVersion: shapes/v1\nkind: Shape\nmetadata:\n  name: {}\nspec:\n  color: {}\n"


async def test_a_problem_names_the_line_of_its_field_and_the_commit_that_wrote_it(
    repository: Repository,
):
    problem = "default/Shape/b: spec.color: 'Mauve' is not allowed"
    repository.write({"a.yaml": SHAPE_LINES.format("a", "Red")})
    repository.commit()
    two = SHAPE_LINES.format("a", "Red") + "---\n# two\n" + SHAPE_LINES.format("b", "{}")
    repository.write({"a.yaml": two.format("Red")})
    repository.commit()
    repository.write({"a.yaml": two.format("Mauve")})
    broken = repository.commit("breaks it")
    assert await origins_of(repository, problem, line=9) == [Origin(14)], "the newest one"
    repository.write({"a.yaml": two.format("Mauve").replace("# two", "# two\n# more")})
    repository.commit("changes the same file")
    repository.write({"other.yaml": SHAPE_LINES.format("c", "Red")})
    repository.commit("changes another file")
    since = f"commit {broken[:12]} by Ann <ann@example.org>"
    assert await origins_of(repository, problem, line=9) == [Origin(15, since)]

    # A field that was removed, and one of an item in a list.
    repository.write({"a.yaml": two.format("Mauve").replace("  color: Mauve", "  size: 1")})
    removed = repository.commit("removes the color")
    listed = '{"kind": "List", "items": [{"a": 1},\n {"kind": "Shape", "metadata":'
    listed += ' {"name": "b"},\n "spec": {"color": "Mauve"}}]}\n'
    repository.write({"list.json": listed})
    repository.commit()
    since = f"commit {removed[:12]} by Ann <ann@example.org>"
    required = "default/Shape/b: spec.color: required"
    assert await origins_of(repository, required, line=9) == [Origin(13, since)]
    assert (await origins_of(repository, problem, file="list.json"))[0].line == 3
    assert (await origins_of(repository, "invalid YAML", file="missing.yaml")) == [Origin(1)]


async def test_the_commit_of_a_problem_is_unknown_if_it_was_not_fetched(repository: Repository):
    repository.write({"a.yaml": SHAPE_LINES.format("a", "Mauve")})
    repository.commit()
    for number in range(MAX_FETCHED_COMMITS):
        repository.commit(str(number))
    problem = "default/Shape/a: spec.color: 'Mauve' is not allowed"
    assert await origins_of(repository, problem) == [Origin(6)]


async def test_a_deeply_nested_document_has_no_line(repository: Repository):
    repository.write({"a.json": '{"spec": ' + "[" * 5000 + "]" * 5000 + "}"})
    repository.commit()
    assert await origins_of(repository, "spec.color: unknown", file="a.json") == [Origin(1)]
