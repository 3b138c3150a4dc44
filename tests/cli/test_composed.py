"""Composed resources, as people see them: a Deployment and its containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.runner import Cli, Inside, up

KEPT_BACK = """
apiVersion: composition/v1
kind: Deployment
metadata: {name: NAME}
spec:
  providerConfigRef: {name: composition}
  replicas: REPLICAS
  template:
    spec: {providerConfigRef: {name: nowhere}, image: "IMAGE"}
"""
"""Nobody declares the configuration of its containers: they are declared, and wait for it."""


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("composed"))
    with up(cli, "--no-api", "--with", "composition"):
        yield Inside(cli.folder)


def write(cli: Cli, name: str, image: str = "web:1", replicas: int = 2) -> str:
    text = KEPT_BACK.replace("NAME", name).replace("REPLICAS", str(replicas))
    return cli.write(f"{name}.yaml", text.replace("IMAGE", image))


def apply(cli: Cli, name: str, image: str = "web:1", replicas: int = 2, reason: str = "") -> None:
    words = ("--reason", reason) if reason else ()
    cli.ok("apply", "-f", write(cli, name, image, replicas), *words)


def parts(cli: Cli, name: str) -> list[str]:
    """Wait until its containers are declared, and name them."""
    cli.ok("wait", f"Deployment/{name}", "--for", "Converged", "--timeout", "30s")
    rows = cli.ok("get", "Container", "-o", "json").json
    names = [each["metadata"]["name"] for each in rows]
    return sorted(each for each in names if each.startswith(f"{name}-"))


def test_33_why_a_container_is_there_leads_up_to_who_asked_for_it(composed: Cli) -> None:
    apply(composed, "why", reason="release 7 of the shop")
    name, *_ = parts(composed, "why")
    ran = composed.ok("why", f"Container/{name}")
    own, _, above = ran.out.partition("Declared by ")
    assert own.startswith(f"default/Container/{name}")
    assert above.startswith('default/Deployment/why, which said "part of default/Deployment/why"')
    assert "(release 7 of the shop)" in above
    assert "ActionDecided Create default.why" in above

    found = composed.ok("why", f"Container/{name}", "-o", "json").json
    [parent] = found["parents"]
    assert parent["resource"] == "default/Deployment/why"
    assert parent["reason"] == "part of default/Deployment/why"
    assert [each["event"] for each in parent["chain"]] == ["SpecDeclared", "ActionDecided"]
    assert composed.ok("why", "Deployment/why", "-o", "json").json["parents"] == []
