"""`reconciler deadletters` on a running stack: show, retry, correct and dismiss."""

from __future__ import annotations

import asyncio

import pytest

from infra.bus.dead_letters import discard
from infra.jetstream.connection import connect
from infra.jetstream.publish import publish
from reconciler.cli.app import build_app
from reconciler.ports import DeadLetter, IntakeDelivery
from tests.cli.runner import Cli, InProcessCli, Up
from tests.scenarios.harness import TIMEOUT_SECONDS


async def send(url: str, subject: str, payload: bytes) -> None:
    nc = await connect(url, name="test")
    await publish(nc, subject, payload)
    await nc.close()


def send_message(up: Up, name: str, payload: str) -> None:
    asyncio.run(send(up.ready["natsUrl"], f"rec.desired.default.Shape.{name}", payload.encode()))


def manifest(name: str, color: str) -> str:
    return (
        f'{{"apiVersion":"shapes/v1","kind":"Shape","metadata":{{"name":"{name}"}},'
        f'"spec":{{"type":"Square","color":"{color}"}}}}'
    )


def wait_for_dead_letter(live: Cli, name: str) -> int:
    """Wait for a dead letter about a resource; return its number."""
    for _ in range(int(TIMEOUT_SECONDS * 10)):
        result = live.ok("deadletters", "list", "--resource", f"default/Shape/{name}", "-o", "json")
        if result.json:
            return int(result.json[-1]["number"])
    raise AssertionError(f"no dead letter about {name}")


def test_a_dead_letter_is_listed_shown_corrected_and_retried(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    send_message(running_up[1], "mauve", manifest("mauve", "Mauve"))
    number = wait_for_dead_letter(live, "mauve")

    listed = live.ok("deadletters", "list", "--resource", "default/Shape/mauve").out
    assert f"{number}  " in listed
    assert "declaration" in listed
    assert "1 dead letter at stage declaration: spec.color: … is not allowed" in listed
    assert "default/Shape/mauve" in live.ok("deadletters", "list", "--since", "1h").out
    assert "mauve" not in live.ok("deadletters", "list", "--stage", "listing").out
    output = live.ok("deadletters", "show", str(number)).out
    assert "Subject:    in." in output
    assert '"color": "Mauve"' in output
    record = live.ok("deadletters", "show", str(number), "-o", "json").json["record"]
    assert record["payload"] == manifest("mauve", "Mauve")

    retry_result = live.run("deadletters", "retry", str(number), "-o", "json")
    assert (retry_result.status, retry_result.json[0]["what"]) == (1, "Invalid")
    assert "the retry failed too, and the message became dead letter" in (
        live.ok("deadletters", "show", str(number)).out
    )

    second_number = wait_for_dead_letter(live, "mauve")
    assert second_number > number
    live.write("new.json", manifest("mauve", "Red"))
    retry_report = live.ok(
        "deadletters", "retry", str(second_number), "--file", "new.json", "-o", "json"
    ).json
    assert (retry_report[0]["what"], retry_report[0]["message"]) == ("Accepted", "generation 1")
    remaining = live.ok(
        "deadletters", "list", "--resource", "default/Shape/mauve", "-o", "json"
    ).json
    assert remaining == []
    handled = live.ok(
        "deadletters", "list", "--resource", "default/Shape/mauve", "--handled", "-o", "json"
    ).json
    assert [letter["state"] for letter in handled] == ["Retried", "Retried"]


async def discard_messages(url: str, *namespaces: str) -> None:
    """Count a message from each namespace as discarded because of its limit."""
    nc = await connect(url, name="test")
    for namespace in namespaces:
        delivery = IntakeDelivery(1, f"in.0.desired.{namespace}.Shape.x", b"", "", None, 1, None)
        await discard(nc, [DeadLetter("intake", "no", delivery)])
    await nc.close()


def test_messages_without_a_dead_letter_are_counted_below_the_list(
    idle: InProcessCli, idle_url: str
) -> None:
    assert idle.ok("deadletters", "list").out == "no dead letters\n"

    asyncio.run(discard_messages(idle_url, "acme", "acme", "other"))

    heading, note = idle.ok("deadletters", "list").out.splitlines()
    assert heading == "no dead letters"
    assert note.startswith("not listed: 3 messages discarded without a dead letter, the last at 20")
    assert note.endswith("; acme: 2 at stage intake, other: 1 at stage intake")
    filtered = idle.ok("deadletters", "list", "--resource", "other/Shape/x", "--since", "1h").out
    assert "not listed: 1 message discarded without a dead letter" in filtered
    assert "not listed" not in idle.ok("deadletters", "list", "--stage", "decision").out
    assert idle.ok("deadletters", "list", "-o", "json").json == []  # lists only dead letters
    checks = {check["check"]: check for check in idle.run("doctor", "-o", "json").json}
    assert f"not listed: {checks['discarded']['details']}" == note


def test_an_unreadable_message_cannot_be_retried_but_can_be_dismissed(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    send_message(running_up[1], "unreadable", "color it red, please")
    number = wait_for_dead_letter(live, "unreadable")

    result = live.run("deadletters", "retry", str(number))
    assert result.status == 1
    assert "its payload is still invalid: not a CloudEvent in structured JSON" in result.out
    result = live.run("deadletters", "dismiss", "--resource", "default/Shape/unreadable")
    assert (result.status, result.err) == (
        1,
        "error: 1 open dead letter matches, and nothing was changed; use --count 1 to select "
        "all of them\n",
    )
    live.ok(
        "deadletters", "dismiss", "--resource", "default/Shape/unreadable", "--count", "1",
        "--note", "a test",
    )  # fmt: skip
    assert "a test" in live.ok("deadletters", "show", str(number)).out
    remaining_result = live.ok(
        "deadletters", "list", "--resource", "default/Shape/unreadable", "-o", "json"
    )
    assert remaining_result.json == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["retry"], 2, "no dead letter selected; use numbers, --stage, --resource or --all"),
        (["retry", "1", "--all"], 2, "use either numbers, or --stage, --resource and --all"),
        (["retry", "1", "2", "--file", "x"], 2, "specify exactly one number"),
        (["retry", "1", "--file", "not-there.json"], 1, "No such file"),
        (["show", "99999"], 1, "dead letter 99999 does not exist"),
        (["list", "--resource", "foo"], 2, "expected namespace/kind/name"),
        (["retry", "--all", "--count", "99999"], 1, "--count is 99999; use --count"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(
    live: Cli, arguments: list[str], status: int, message: str
) -> None:
    result = live.run("deadletters", *arguments)
    assert (result.status, result.err.count("\n")) == (status, 1)
    assert message in result.err


def test_help_and_completion_include_the_subcommands(live: Cli) -> None:
    assert "dismiss" in live.ok("deadletters", "--help").out
    script = build_app().generate_completion(prog_name="reconciler", shell="bash")
    assert "deadletters dismiss" in script
    for command in ("list", "show", "retry", "dismiss"):
        assert "For example:" in live.ok("deadletters", command, "--help").out
