"""Commands for composed resources: a Deployment and its containers."""

from __future__ import annotations

from tests.cli.runner import Cli

HELD_DEPLOYMENT = """
apiVersion: composition/v1
kind: Deployment
metadata: {name: NAME}
spec:
  providerConfigRef: {name: composition}
  replicas: REPLICAS
  template:
    spec: {providerConfigRef: {name: nowhere}, image: "IMAGE"}
"""
"""Its containers are held, because no manifest declares their configuration."""


def write(cli: Cli, name: str, image: str = "web:1", replicas: int = 2) -> str:
    text = HELD_DEPLOYMENT.replace("NAME", name).replace("REPLICAS", str(replicas))
    return cli.write(f"{name}.yaml", text.replace("IMAGE", image))


def apply(cli: Cli, name: str, image: str = "web:1", replicas: int = 2, reason: str = "") -> None:
    words = ("--reason", reason) if reason else ()
    cli.ok("apply", "-f", write(cli, name, image, replicas), *words)


def wait_for_parts(cli: Cli, name: str) -> list[str]:
    """Wait until the containers of a Deployment are declared; return their names."""
    cli.ok("wait", f"Deployment/{name}", "--for", "Converged", "--timeout", "30s")
    rows = cli.ok("get", "Container", "-o", "json").json
    names = [row["metadata"]["name"] for row in rows]
    return sorted(part for part in names if part.startswith(f"{name}-"))


def test_33_why_for_a_container_includes_its_deployments_declaration(live: Cli) -> None:
    apply(live, "why", reason="release 7 of the shop")
    name, *_ = wait_for_parts(live, "why")
    result = live.ok("why", f"Container/{name}")
    own, _, above = result.out.partition("\nIt is part of ")
    assert own.startswith(f"default/Container/{name} is held (ProviderConfigMissing): ")
    assert above.startswith("default/Deployment/why.\n")
    assert "(reason: release 7 of the shop)" in above
    assert "Reconciler decided to create default.why" in above

    explanation = live.ok("why", f"Container/{name}", "-o", "json").json
    [parent] = explanation["parents"]
    assert parent["resource"] == "default/Deployment/why"
    assert parent["reason"] == "part of default/Deployment/why"
    assert [line["event"] for line in parent["chain"]] == ["SpecDeclared", "ActionDecided"]
    assert live.ok("why", "Deployment/why", "-o", "json").json["parents"] == []


def test_33_describe_shows_what_each_part_waits_for_and_since_when(
    live: Cli,
) -> None:
    apply(live, "described")
    names = wait_for_parts(live, "described")
    live.ok("wait", f"Container/{names[0]}", "--for", "Held", "--timeout", "30s")
    live.ok("wait", f"Container/{names[1]}", "--for", "Held", "--timeout", "30s")
    description = live.ok("describe", "Deployment/described").out
    table = description.partition("\nParts\n")[2].partition("\n\n")[0].splitlines()
    assert table[0].split() == ["NAME", "OUTCOME", "READY", "SINCE", "REASON", "MESSAGE"]
    for name, line in zip(names, table[1:], strict=True):
        name_, outcome, is_ready, since, reason, message = line.split(maxsplit=5)
        assert (name_, outcome, is_ready) == (f"default/Container/{name}", "Held", "no")
        assert since.startswith("20")
        assert (reason, message[:23]) == ("ProviderConfigMissing", "ProviderConfig 'nowhere")

    conditions = description.partition("\nConditions\n")[2]
    [ready] = [line.split() for line in conditions.splitlines() if line.startswith("Ready")]
    assert ready[1] == "False"
    assert ready[2].startswith("20")
    assert live.ok("describe", "Deployment/described", "-o", "json").json["parts"][0]["since"]

    description = live.ok("describe", f"Container/{names[0]}").out
    assert "part of          default/Deployment/described" in description
    wide = live.ok("get", "Container", names[0], "-o", "wide").out.splitlines()
    assert "WAITING SINCE" in wide[0]


def run_plan(cli: Cli, *command: str) -> list[str]:
    result = cli.run(*command)
    assert result.status == 2, result
    return [line.rstrip() for line in result.out.splitlines()]


def test_27_a_plan_names_the_containers(live: Cli) -> None:
    lines = run_plan(live, "plan", "-f", write(live, "plan"))
    assert lines[:2] == ["default/Deployment/plan", "  + Create default.plan"]
    new = [line for line in lines if line.startswith("      + default/Container/plan-")]
    assert len(new) == 2
    assert not [line for line in lines if "manifests" in line]
    assert lines[-1].startswith("Plan: 1 to create, 2 held (as of")
    apply(live, "plan")
    names = wait_for_parts(live, "plan")
    assert [line.rpartition("/")[2] for line in new] == names

    lines = run_plan(live, "apply", "--dry-run=server", "-f", write(live, "plan", "web:2"))
    [new] = [line for line in lines if line.startswith("      + ")]
    assert new.startswith("      + default/Container/plan-")
    assert new.rpartition("/")[2] not in names
    assert not [line for line in lines if line.startswith("      - ")], (
        "no old container is deleted yet"
    )
    assert "      The next steps follow as the parts become ready." in lines
    assert run_plan(live, "diff", "-f", "plan.yaml")[1:-1] == lines[1:-1]  # except the ages

    lines = run_plan(live, "delete", "Deployment", "plan", "--dry-run")
    deleted_lines = [line for line in lines if line.startswith("      - ")]
    assert [line.rpartition("/")[2] for line in deleted_lines] == names


def test_27_a_plan_with_many_parts_names_the_first_ones(live: Cli) -> None:
    file = write(live, "many", replicas=30)
    lines = run_plan(live, "plan", "-f", file)
    assert len([line for line in lines if line.startswith("      + ")]) == 10
    assert "      … and 20 to declare" in lines
    assert "… and 27 more parts of default/Deployment/many; -o json lists all" in lines
    result = live.run("plan", "-f", file, "-o", "json")
    [many, *others] = result.json["resources"]
    assert len(many["actions"][0]["parts"]) == 30
    assert [part["partOf"] for part in others] == ["default/Deployment/many"] * 30
