"""Webhooks: genuine ones lead to a look at the sources of their repository, others to nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infra.webhook import MAX_BODY_BYTES, same_repository
from tests.cli.runner import Cli, shape, until, up
from tests.git.repositories import Repository
from tests.host_access import allow_more

SECRET = "a secret of enough characters"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path / "machine")
    cli.folder.mkdir()
    (cli.folder / "secret").write_text(SECRET + "\n")
    with up(cli, "--with", "composition", "--resync", "0.5"):
        yield cli


def test_a_push_is_looked_at_at_once(folder: Cli, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "Acme" / "shop.git")
    repository.write({"a.yaml": shape("a")})
    repository.commit()
    spec = {
        "providerConfigRef": {"name": "composition"},
        "url": repository.url,
        "intervalSeconds": 3600,
    }
    source = {"apiVersion": "git/v1", "kind": "GitSource", "metadata": {"name": "shop"}}
    allow_more(folder, "composition", addresses=repository.url)
    folder.ok("apply", "-f", "-", "--wait", text=json.dumps({**source, "spec": spec}))
    assert names(folder) == ["a"]
    server = folder.start("webhook", "--secret-file", "secret", "--port", "0")
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    try:
        payload = {"repository": {"clone_url": repository.url.removesuffix(".git")}}
        body = json.dumps(payload).encode()
        made = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        for headers in ({}, {"X-Hub-Signature-256": "sha256=0"}, {"X-Gitlab-Token": "guessed"}):
            assert httpx.post(url, content=body, headers=headers).status_code == 401
        assert httpx.get(url).status_code == 405
        token = {"X-Gitlab-Token": SECRET}
        assert httpx.post(url, content=b"{}", headers=token).status_code == 400
        assert httpx.post(url, content=b"[", headers=token).status_code == 400
        large = b" " * (MAX_BODY_BYTES + 1)
        assert httpx.post(url, content=large, headers=token).status_code == 413
        other = httpx.post(url, json={"project": {"git_ssh_url": "git@h:o/r"}}, headers=token)
        assert (other.status_code, other.json()) == (202, {"lookedAt": []})

        repository.write({"b.yaml": shape("b")})
        repository.commit()
        answer = httpx.post(url, content=body, headers={"X-Hub-Signature-256": f"sha256={made}"})
        assert answer.json() == {"lookedAt": ["default/GitSource/shop"]}
        until(folder, ("get", "Shape"), lambda said: len(said) == 2)
        assert names(folder) == ["a", "b"]
    finally:
        server.terminate()
        server.communicate(timeout=30)
    bad = folder.run("webhook", "--secret-file", "no")
    assert bad.status == 1
    assert "cannot read no: " in bad.err


def names(cli: Cli) -> list[str]:
    return [each["metadata"]["name"] for each in cli.ok("get", "Shape", "-o", "json").json]


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.org/acme/shop.git",
        "https://git.example.org/acme/shop",
        "ssh://git@Git.example.org/acme/shop.git",
        "git@git.example.org:acme/shop.git",
    ],
)
def test_urls_of_one_repository_are_known_as_one(url: str) -> None:
    assert same_repository(url) == "git.example.org/acme/shop"
