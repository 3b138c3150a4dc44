"""Commands on one running stack; each test uses its own names."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from infra.bus.streams import INTAKE
from infra.jetstream.connection import api_request, close, connect
from tests.cli.runner import COMMAND, STOP_SECONDS, Cli, InProcessCli, Up, empty_bus, shape

BADGE = "<!-- applied by tests/scenarios/test_definitions.py -->\n```yaml\n"


def test_invalid_documents_do_not_block_the_others(live: Cli) -> None:
    live.write(
        "mixed.yaml",
        "---\n".join(
            (
                shape("mixed-good"),
                "a: [b\n",
                shape("7"),
                shape("mixed-mauve", "Mauve"),
                "apiVersion: shapes/v1\nkind: Nothing\nmetadata: {name: mixed}\n",
                "",
                "kind: Shape\n",
            )
        ),
    )
    result = live.run("apply", "-f", "mixed.yaml", "--wait", "-o", "json")
    assert result.status == 1
    assert {(row["resource"], row.get("outcome", ""), row["reason"]) for row in result.json} == {
        ("default/Shape/mixed-good", "Converged", "AsDeclared"),
        ("default/Nothing/mixed", "", "UnknownKind"),
    }
    assert result.err.splitlines() == [
        "error: mixed.yaml, document 2: invalid YAML: line 7, column 1: "
        "did not find expected ',' or ']'",
        "error: mixed.yaml, document 3: metadata.name: must be a string, not an integer; "
        "put it in quotes",
        "error: mixed.yaml, document 4: default/Shape/mixed-mauve: spec.color: 'Mauve' is not "
        "allowed; use one of Black, Blue, Green, Purple, Red, White, Yellow",
        "error: mixed.yaml, document 6: apiVersion: required",
    ]


def test_a_dry_run_accepts_the_kinds_that_its_documents_define_and_checks_references(
    live: Cli,
) -> None:
    page = (Path(__file__).parents[2] / "docs/kinds/kind-definition.md").read_text()
    live.write("dry-badge/badge.yaml", page.split(BADGE)[1].split("```")[0])
    live.write(
        "dry-badge/more.yaml",
        "{apiVersion: badges/v1, kind: Badge, metadata: {name: dry-a}, spec: {shade: mauve}}\n---\n"
        "{apiVersion: badges/v1, kind: Badge, metadata: {name: dry-b},"
        " spec: {shade: {$ref: Badge/dry-a, field: outputs.shade}}}\n",
    )
    result = live.run("apply", "-f", "dry-badge", "--dry-run")
    assert result.status == 1
    assert result.err == (
        "error: dry-badge/more.yaml, document 1: default/Badge/dry-a: "
        "spec.shade: 'Mauve' is not allowed; use one of Red, Blue\n"
        "5 resources: 4 Accepted, 1 invalid (dry run)\n"
    )


def test_a_dry_run_checks_and_sends_nothing(live: Cli) -> None:
    live.write("dry/a.yaml", shape("dry"))
    live.write("dry/below/b.yaml", shape("dry-mauve", "Mauve"))
    result = live.run("apply", "-f", "dry", "--dry-run")
    assert result.status == 1
    assert "dry/below/b.yaml, document 1: default/Shape/dry-mauve: spec.color: 'Ma" in result.err
    assert live.run("history", "dry").status == 1


def test_apply_reads_standard_input_into_a_namespace(live: Cli) -> None:
    live.ok("apply", "-f", "-", "-n", "team", "--wait", text=shape("input"))
    assert live.ok("get", "-A", "-o", "name").out.count("team/Shape/input\n") == 1
    assert live.ok("get", "shapes", "input", "-n", "team", "-o", "yaml").out.startswith(
        "apiVersion"
    )
    assert live.run("get", "shapes", "input").status == 1
    assert live.ok("get", "-n", "team", "--outcome", "failed").out == ""
    assert len(live.ok("get", "-n", "team", "--outcome", "converged").rows) == 1
    description = live.ok("describe", "team/shape/input").out
    for word in ("Converged", "color: Red", "reason: Created", " declared generation 1 with "):
        assert word in description
    assert live.ok("describe", "Shape", "input", "-o", "json").json["ownership"]["owned"] is True


def test_history_reports_drift(live: Cli, running_up: tuple[Cli, Up]) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("drifting", "Purple"))
    url = f"{running_up[1].ready['apiUrl']}/shapes/drifting"
    existing_shape = httpx.get(url).json()
    body = {key: existing_shape[key] for key in ("name", "type", "labels") if key in existing_shape}
    httpx.put(url, json={**body, "color": "Green"}).raise_for_status()
    deadline = time.monotonic() + STOP_SECONDS
    drift: list[str] = []
    while not drift and time.monotonic() < deadline:
        lines = live.ok("history", "drifting", "-o", "json").json
        drift = [line["what"] for line in lines if line["event"] == "DriftDetected"]
    assert drift == [
        "The object was changed outside of Reconciler: color is Green (declared: Purple)"
    ]


def test_delete_names_unknown_resources(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("leaving"))
    result = live.run("delete", "Shape", "leaving", "never", "--wait", "-o", "json")
    assert result.status == 1
    assert [(row["resource"], row["reason"]) for row in result.json] == [
        ("default/Shape/leaving", "Gone"),
        ("default/Shape/never", "NotFound"),
    ]
    assert live.run("delete").status == 2


def test_delete_waits_for_a_resource_until_its_references_are_deleted(live: Cli) -> None:
    reference = (
        "apiVersion: reconciler/v1\nkind: ShapeRef\nmetadata: {name: keeper}\n"
        "spec: {target: {kind: Shape, name: kept}}\n"
    )
    live.ok("apply", "-f", "-", "--wait", text=shape("kept"))
    live.ok("apply", "-f", "-", "--wait", text=reference)
    deadline = time.monotonic() + STOP_SECONDS
    while "ReferenceAdded" not in live.ok("history", "Shape/kept", "-o", "json").out:
        assert time.monotonic() < deadline, "the reference does not take effect"
    result = live.run("delete", "Shape/kept", "ShapeRef/keeper", "--wait", "-o", "json")
    assert (result.status, [row["outcome"] for row in result.json]) == (0, ["Deleted"] * 2), result


def _config(name: str, url: str) -> str:
    return (
        f"apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {{name: {name}}}\n"
        f"spec: {{provider: shapes, endpoint: '{url}', allow: {{addresses: ['*']}}}}\n"
    )


def test_delete_waits_for_a_configuration_and_its_resources_in_any_order(
    running_up: tuple[Cli, Up], live: Cli
) -> None:
    url = running_up[1].ready["apiUrl"]
    leaving = shape("in-a-file").replace("spec: {", "spec: {providerConfigRef: {name: own}, ")
    documents = f"{_config('own', url)}---\n{leaving}"
    live.ok("apply", "-f", "-", "--wait", text=documents)
    kept = live.run("delete", "ProviderConfig/own", "--wait", "-o", "json")
    assert (kept.status, kept.json[0]["outcome"], kept.json[0]["reason"]) == (
        1,
        "Held",
        "Referenced",
    )
    assert "1 resource uses it: default/Shape/in-a-file" in kept.json[0]["message"]
    live.ok("apply", "-f", "-", "--wait", text=documents)
    planned = live.run("delete", "-f", "-", "--dry-run", "-o", "json", text=documents)
    assert planned.status == 2, planned
    deleted = live.ok("delete", "-f", "-", "--wait", "-o", "json", text=documents).json
    assert [(each["resource"], each["outcome"]) for each in deleted] == [
        ("system/ProviderConfig/own", "Deleted"),
        ("default/Shape/in-a-file", "Deleted"),
    ]
    assert httpx.get(f"{url}/shapes/in-a-file").status_code == 404


def test_delete_keeps_a_configuration_whose_resources_are_left_unless_it_is_released(
    running_up: tuple[Cli, Up], live: Cli
) -> None:
    url = running_up[1].ready["apiUrl"]
    kept = shape("kept-in-a-file").replace("spec: {", "spec: {providerConfigRef: {name: own2}, ")
    documents = f"{_config('own2', url)}---\n{kept}"
    live.ok("apply", "-f", "-", "--wait", text=documents)
    live.ok("finalizer", "add", "Shape/kept-in-a-file", "test/holder")
    result = live.run("delete", "-f", "-", "--wait", "-o", "json", text=documents)
    assert (result.status, [each["reason"] for each in result.json]) == (
        1,
        ["Referenced", "Finalizers"],
    )
    released = live.ok("release", "ProviderConfig", "own2", "--reason", "INC-42")
    assert "Reconciler makes no more calls to its API" in released.out
    live.ok("wait", "ProviderConfig", "own2", "--for", "deleted")
    assert httpx.get(f"{url}/shapes/kept-in-a-file").status_code == 200
    live.ok("apply", "-f", "-", text=_config("own2", url))
    live.ok("finalizer", "remove", "Shape/kept-in-a-file", "test/holder")
    live.ok("delete", "-f", "-", "--wait", text=documents)


def test_wait_exits_with_3_after_its_timeout(live: Cli) -> None:
    config = (
        "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {name: away}\n"
        "spec: {provider: shapes, endpoint: 'http://127.0.0.1:1', resyncSeconds: 3600}\n"
    )
    waiting = shape("waiting").replace("spec: {", "spec: {providerConfigRef: {name: away}, ")
    result = live.run(
        "apply", "-f", "-", "--wait", "--timeout", "1s", text=f"{waiting}---\n{config}"
    )
    assert result.status == 3, result
    assert "timed out" in result.out
    live.ok("delete", "Shape", "waiting")
    doctor = live.run("doctor", "-o", "json")
    assert doctor.status == 1
    checks = {check["check"]: check for check in doctor.json}
    assert checks["API away"]["status"] == "fail"
    assert checks["API default"]["status"] == "ok"
    live.ok("delete", "ProviderConfig", "away", "--wait", "--timeout", "10s")


def test_watch_shows_outcomes_until_it_is_interrupted(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("watched"))
    process = live.start("watch", "shape", "--since-start", "--output", "json")
    assert process.stdout is not None
    while True:
        line = process.stdout.readline()
        assert line
        if json.loads(line)["resource"] == "default/Shape/watched":
            break
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=STOP_SECONDS)
    assert (process.returncode, err) == (0, "")


def test_a_closed_output_pipe_is_not_an_error(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("piped"))
    process = live.start("watch", "--since-start")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=STOP_SECONDS) == 0


def test_replay_prints_every_row_and_the_fleet(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("replayed"))
    rows = [json.loads(line) for line in live.ok("replay", "--dump").out.splitlines()]
    by_name = {row["row"]: row["value"] for row in rows}
    assert by_name["status.default.Shape.replayed"]["outcome"] == "Converged"
    assert by_name["status.default.Shape.replayed"]["owned"] is True
    assert "Converged" in live.ok("replay").out


@pytest.mark.parametrize("command", ["get", "doctor", "init", "replay", "history foo"])
def test_an_unreachable_bus_is_reported_in_one_line(
    local_cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.connection.CONNECT_TIMEOUT_SECONDS", 0.2)
    result = local_cli.run(*command.split(), "--nats-url", "nats://127.0.0.1:1")
    assert result.status == 1
    assert result.err.startswith("error: cannot reach nats://127.0.0.1:1")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("get -n a.b", "namespace"),
        ("get Shape foo -n a.b", "namespace"),
        ("get Shape a.b", "name"),
        ("watch -n a.b", "namespace"),
        ("watch Shape a.b", "name"),
        ("history foo -n a.b", "namespace"),
        ("history a.b", "name"),
        ("history default/a.b/foo", "kind"),
        ("describe Shape foo -n a.b", "namespace"),
        ("describe Shape a.b", "name"),
        ("delete Shape foo -n a.b", "namespace"),
        ("delete Shape a.b", "name"),
        ("apply -f foo.yaml -n a.b", "namespace"),
        ("approve --all --hold LossGuard -n a.b", "namespace"),
        ("release Shape a.b --reason x", "name"),
        ("finalizer add Shape a.b x", "name"),
        ("deadletters list --resource default/Shape/a.b", "name"),
        ("deadletters retry --resource default/Shape/a.b", "name"),
    ],
)
def test_every_command_reports_an_invalid_name_in_the_same_words(
    local_cli: Cli, command: str, part: str
) -> None:
    result = local_cli.run(*command.split(), RECONCILER_NATS_URL="nats://127.0.0.1:1")
    assert (result.status, result.out, result.err) == (
        2,
        "",
        f"error: {part} 'a.b' is not allowed; use 1 to 63 of the characters A-Z a-z 0-9 _ -\n",
    )


@pytest.mark.parametrize("command", ["history", "describe"])
def test_a_resource_with_too_many_parts_is_a_usage_error(local_cli: Cli, command: str) -> None:
    result = local_cli.run(command, "a/b/c/d", RECONCILER_NATS_URL="nats://127.0.0.1:1")
    assert result.status == 2
    assert "use NAME, KIND/NAME or NAMESPACE/KIND/NAME" in result.err


def test_debug_shows_the_traceback_but_no_secret(cli: Cli) -> None:
    result = cli.run("get", "--debug", RECONCILER_NATS_URL="nats://me:hunter2@127.0.0.1:1")
    assert result.status == 1
    assert "Traceback" in result.err
    assert "cannot reach nats://127.0.0.1:1: " in result.err
    assert "hunter2" not in result.err


def test_a_missing_decider_is_reported(idle: InProcessCli) -> None:
    result = idle.run("apply", "-f", "-", "--timeout", "500ms", text=shape("foo"))
    assert result.status == 3
    assert "shows whether a decider is running" in result.err
    assert idle.run("get").status == 0
    checks = {check["check"]: check for check in idle.run("doctor", "-o", "json").json}
    assert "no decider is pulling messages" in checks["intake"]["details"]
    assert checks["intake"]["status"] == "fail"


@pytest.mark.parametrize(
    ("schema_format", "expected_key"),
    [((), "$defs"), (("json-schema",), "$defs"), (("asyncapi",), "channels")],
)
def test_schemas_are_printed_without_a_server(
    local_cli: InProcessCli, schema_format: tuple[str, ...], expected_key: str
) -> None:
    result = local_cli.run("schema", *schema_format)
    assert result.status == 0
    assert expected_key in result.json


def test_a_kind_defined_at_run_time_is_not_reported_as_a_typo(live: Cli) -> None:
    page = (Path(__file__).parents[2] / "docs/kinds/kind-definition.md").read_text()
    definition = page.split(BADGE)[1].split("---")[0].replace("name: Badge", "name: Shapely")
    definition = definition.replace("badge", "shapely")
    live.ok("apply", "-f", "-", "--wait", text=definition)
    shapely = "{apiVersion: shapelys/v1, kind: %s, metadata: {name: like}, spec: {shade: Red}}"
    assert live.run("apply", "-f", "-", text=shapely % "Shapely").err == ""
    result = live.run("apply", "-f", "-", text=shapely % "Shapley")
    assert (result.status, result.out) == (1, "")
    assert "did you mean Shape" in result.err
    assert "use --validate server to send it anyway" in result.err
    live.ok("delete", "Shapely/like", "--wait")
    live.ok("delete", "KindDefinition", "Shapely", "--wait")


def test_a_role_without_streams_names_the_command_that_creates_them(
    local_cli: InProcessCli, tmp_path: Path
) -> None:
    with empty_bus(tmp_path / "bus") as url:
        local_cli.url = url
        for command in ("run decider", "run worker", "run observer", "run projector", "get"):
            result = local_cli.run(*command.split())
            assert (result.status, result.err) == (
                1,
                "error: this server has no event log yet; create it with `reconciler init`, or "
                "start everything with `reconciler up`\n",
            )
        assert local_cli.run("init").status == 0
        asyncio.run(delete_stream(url, INTAKE))
        result = local_cli.run("run", "decider")
        *log_lines, error = result.err.splitlines()
        assert (result.status, [json.loads(line)["level"] for line in log_lines]) == (1, ["info"])
        assert error.startswith("error: ")
        assert error.endswith("; `reconciler init` creates missing streams and consumers")


async def delete_stream(url: str, name: str) -> None:
    nc = await connect(url, name="test")
    await api_request(nc, f"STREAM.DELETE.{name}", None)
    await close(nc)


LOG_COMMANDS = (
    "get Shape foo -o json",
    "apply -f foo.yaml --wait",
    "apply -f foo.yaml --dry-run=server",
    "plan -f foo.yaml",
    "diff -f foo.yaml",
    "diff foo --from 1h",
    "wait Shape/foo",
    "describe Shape/foo",
    "delete Shape foo",
    "delete Shape foo --dry-run",
    "rollback Shape/foo",
    "reconcile Shape/foo",
    "pause Shape/foo",
    "resume Shape/foo",
    "approve Shape foo --hold LossGuard",
    "approve --all --hold LossGuard",
    "reject Shape/foo --reason x",
    "finalizer add Shape foo a/b",
    "finalizer remove Shape foo a/b",
    "release Shape foo --reason x",
    "watch --since-start",
    "why foo",
    "history foo",
    "events --follow",
    "logs Container/x",
    "replay --verify",
    "replay --repair",
    "deadletters list",
    "deadletters show 1",
    "deadletters retry 1",
    "doctor --full",
    "backup b",
)


def test_every_command_on_an_empty_server_refers_to_init(
    local_cli: InProcessCli, tmp_path: Path
) -> None:
    local_cli.write("foo.yaml", shape("foo"))
    with empty_bus(tmp_path / "bus") as url:
        local_cli.url = url
        for command in LOG_COMMANDS:
            result = local_cli.run(*command.split())
            error_text = [line for line in result.err.splitlines() if not line.startswith("bus: ")]
            assert (result.status, result.out, len(error_text)) == (1, "", 1), (command, result)
            assert error_text[0].startswith("error: this server has no event log"), command
            assert "`reconciler init`" in error_text[0], command


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("command", ["kinds", "doctor", "schema", "get --help"])
def test_output_to_a_full_disk_is_reported_in_one_line(idle: InProcessCli, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*COMMAND, *command.split()],
            cwd=idle.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=idle.environment(),
            timeout=100,
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr == (
        "error: cannot write: No space left on device; free disk space, or write to another disk\n"
    )
