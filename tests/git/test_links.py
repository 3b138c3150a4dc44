"""Symbolic links, ignored files, and files that no longer contain their manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.providers.git.problems import GitError
from infra.providers.git.reader_process import Reply, Request, read_source
from infra.providers.git.repository import Remote, fetch, find_commit
from tests.git.repositories import Repository
from tests.host_access import EVERYTHING

BASE = {"deploy/one.yaml": "1", "base/two.yaml": "2", "base/deep/three.yaml": "3"}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "served" / "shop")


def files(repository: Repository, path: str = "deploy", *, is_rendered: bool = False) -> list[str]:
    remote = Remote(repository.url, allow=EVERYTHING)
    with fetch(remote, find_commit(remote, {}).commit) as checkout:
        return sorted(checkout.tree.files(path, is_rendered=is_rendered))


def link(repository: Repository, name: str, target: str) -> None:
    path = repository.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def shape(name: str) -> str:
    return (
        "apiVersion: shapes/v1\nkind: Shape\n"
        f"metadata: {{name: {name}}}\nspec: {{type: Square, color: Red}}\n"
    )


async def read(repository: Repository, declared: str = "", path: str = "deploy") -> Reply:
    source = {"url": repository.url, "path": path}
    return await read_source(
        Request(source, "default", "", 20, 20, EVERYTHING, declared=declared, source_digest="d")
    )


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("deploy/two.yaml", "../base/two.yaml", ["deploy/one.yaml", "deploy/two.yaml"]),
        ("deploy/x/two.yaml", "../../base/two.yaml", ["deploy/one.yaml", "deploy/x/two.yaml"]),
        ("deploy/base", "../base/deep", ["deploy/base/three.yaml", "deploy/one.yaml"]),
        ("deploy/base", "./../base/./deep/", ["deploy/base/three.yaml", "deploy/one.yaml"]),
        ("deploy/readme", "/usr/share/doc", ["deploy/one.yaml"]),
        ("deploy/gone", "nowhere", ["deploy/one.yaml"]),
    ],
)
def test_links_within_the_repository_are_followed(
    name: str, target: str, expected: list[str], repository: Repository
) -> None:
    repository.write(BASE)
    link(repository, name, target)
    repository.commit()
    assert files(repository) == expected


def test_a_link_may_lead_through_other_links(repository: Repository) -> None:
    repository.write(BASE)
    link(repository, "current", "base")
    link(repository, "deploy/two.yaml", "../current/two.yaml")
    link(repository, "deploy/again.yaml", "two.yaml")
    link(repository, "live", "deploy")
    repository.commit()
    assert files(repository) == ["deploy/again.yaml", "deploy/one.yaml", "deploy/two.yaml"]
    assert files(repository, "live") == ["live/again.yaml", "live/one.yaml", "live/two.yaml"]
    assert files(repository, "live/two.yaml") == ["live/two.yaml"]
    assert files(repository, "current/deep") == ["current/deep/three.yaml"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/etc/passwd", "outside of the repository"),
        ("../../../../etc/passwd", "outside of the repository"),
        ("../base/nothing.yaml", "which does not exist"),
        ("../base/two.yaml/more", "which does not exist"),
        ("loop.yaml", "through too many other links"),
        ("..", "a directory that contains it"),
        (".", "a directory that contains it"),
    ],
)
def test_a_link_without_a_file_in_the_commit_is_reported(
    target: str, reason: str, repository: Repository
) -> None:
    repository.write(BASE)
    link(repository, "deploy/loop.yaml", target)
    repository.commit()
    with pytest.raises(GitError, match=rf"deploy/loop\.yaml: the symbolic link .*{reason}"):
        files(repository)
    assert "deploy/one.yaml" in files(repository, "", is_rendered=True)
    repository.write({"deploy/.reconcilerignore": "loop.yaml\n"})
    repository.commit()
    assert files(repository) == ["deploy/.reconcilerignore", "deploy/one.yaml"]


def test_directories_that_contain_each_other_by_links_are_reported(repository: Repository) -> None:
    repository.write(BASE)
    link(repository, "deploy/base.yaml", "../base")
    link(repository, "base/deploy.yaml", "../deploy")
    repository.commit()
    with pytest.raises(GitError, match="a directory that contains it"):
        files(repository)


def test_ignored_files_are_not_read(repository: Repository) -> None:
    ignored = "# not ours\n*.tpl.yaml\n/old/\n!keep.tpl.yaml\n"
    repository.write(
        {
            **BASE,
            "deploy/.reconcilerignore": ignored,
            "deploy/a.tpl.yaml": "",
            "deploy/keep.tpl.yaml": "",
            "deploy/old/a.yaml": "",
            "deploy/x/old/a.yaml": "",
        }
    )
    repository.commit()
    assert files(repository) == [
        "deploy/.reconcilerignore",
        "deploy/keep.tpl.yaml",
        "deploy/one.yaml",
        "deploy/x/old/a.yaml",
    ]
    repository.write({"deploy/.reconcilerignore": "*" * 70_000})
    repository.commit()
    with pytest.raises(GitError, match="more than 65536 bytes"):
        files(repository)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("emptied", "deploy/two.yaml now contains no manifest"),
        ("commented", "deploy/two.yaml now contains no manifest"),
        ("linked directory", "deploy/more/a.yaml now has a symbolic link in its path"),
        ("submodule", "deploy/more/a.yaml is now in a submodule"),
    ],
)
async def test_a_file_that_lost_its_manifests_withdraws_nothing(
    change: str, message: str, repository: Repository
) -> None:
    repository.write(
        {"deploy/one.yaml": shape("one"), "deploy/two.yaml": shape("two")}
        | {"deploy/more/a.yaml": shape("three"), "notes/readme.txt": "x"}
    )
    first = repository.commit()
    assert (await read(repository)).failure is None
    match change:
        case "emptied":
            repository.write({"deploy/two.yaml": ""})
        case "commented":
            repository.write({"deploy/two.yaml": "# " + shape("two").replace("\n", "\n# ")})
        case _:
            repository.remove("deploy/more/a.yaml")
            (repository.folder / "deploy/more").rmdir()
    if change == "linked directory":
        link(repository, "deploy/more", "../notes")
    repository.commit()
    if change == "submodule":
        repository.git("update-index", "--add", "--cacheinfo", f"160000,{first},deploy/more")
        repository.git("commit", "--quiet", "-m", "a submodule")

    failure = (await read(repository, first)).failure

    assert failure is not None
    assert failure.reason == "BadCommit"
    assert message in failure.message
    assert f"{first[:12]} declared resources in it" in failure.message
    assert (await read(repository)).failure is None, "without an earlier commit"


@pytest.mark.parametrize("change", ["removed", "ignored", "linked", "renamed"])
async def test_a_removed_or_ignored_file_withdraws_its_resources(
    change: str, repository: Repository
) -> None:
    repository.write({"deploy/one.yaml": shape("one"), "deploy/two.yaml": shape("two")})
    first = repository.commit()
    match change:
        case "ignored":
            repository.write({"deploy/.reconcilerignore": "two.yaml\n", "deploy/two.yaml": ""})
        case "renamed":
            repository.git("mv", "deploy/two.yaml", "deploy/two.yaml.off")
        case _:
            repository.remove("deploy/two.yaml")
    if change == "linked":
        repository.write({"base/two.yaml": shape("two")})
        link(repository, "deploy/two.yaml", "../base/two.yaml")
    repository.commit()

    reply = await read(repository, first)

    assert reply.failure is None
    names = [each.manifest.metadata.name for each in reply.documents if each.manifest]
    assert names == (["one", "two"] if change == "linked" else ["one"])
