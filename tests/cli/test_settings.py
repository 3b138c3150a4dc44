"""Settings of the connection, completion, and what hints repeat of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.cli.selectors import parse_selector
from tests.cli.runner import Cli, Inside


def sources(cli: Cli, *arguments: str, **environment: str) -> dict[str, tuple[str, str]]:
    settings = cli.run("config", "view", "-o", "json", *arguments, **environment).json
    return {each["name"]: (each["value"], each["source"]) for each in settings}


def test_a_flag_wins_over_the_environment_and_that_over_the_file(inside: Cli) -> None:
    inside.write("reconciler.toml", 'nats-url = "nats://file:1"\ntls-ca = "/ca"\nnkey = "/nkey"\n')
    sources_by_setting = sources(inside)
    assert sources_by_setting["nats-url"] == ("nats://file:1", "file reconciler.toml")
    sources_by_setting = sources(
        inside, RECONCILER_NATS_URL="nats://env:1", RECONCILER_CREDENTIALS="/creds"
    )
    assert sources_by_setting["nats-url"] == ("nats://env:1", "environment RECONCILER_NATS_URL")
    assert sources_by_setting["tls-ca"] == ("/ca", "file reconciler.toml")
    assert sources_by_setting["nkey"] == ("", "default"), "who we are comes whole from one place"
    sources_by_setting = sources(
        inside, "--nats-url", "nats://me:secret@flag:1", RECONCILER_NATS_URL="nats://e"
    )
    assert sources_by_setting["nats-url"] == ("nats://flag:1", "flag --nats-url")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("backup", ""), "FILE '': name a file or a directory"),
        (("restore", ""), "FILE '': name a file or a directory"),
        (("get", "--nkey", ""), "--nkey '': name a file or a directory"),
        (("secrets", "list", "--directory", ""), "--directory '': name a file or a directory"),
    ],
)
def test_an_empty_name_is_not_the_current_directory(
    inside: Cli, arguments: tuple[str, ...], message: str
) -> None:
    refused = inside.run(*arguments)
    assert (refused.status, refused.err) == (2, f"error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("get", "--nkey", "/dev/zero"), {}),
        (("get", "--credentials", "/dev/zero"), {}),
        (("webhook", "--secret-file", "/dev/zero"), {}),
        (("secrets", "set", "key", "--from-file", "/dev/zero", "--directory", "."), {}),
        (("get",), {"RECONCILER_CONFIG": "/dev/zero"}),
    ],
)
def test_a_device_in_place_of_a_small_file_is_refused(
    inside: Cli, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    refused = inside.run(*arguments, RECONCILER_NATS_URL="nats://127.0.0.1:1", **environment)
    assert refused.status == 1
    assert "/dev/zero: " in refused.err
    assert "it is larger than 1 MiB" in refused.err
    assert refused.err.count("\n") == 1


def test_the_file_can_be_elsewhere(inside: Cli, tmp_path: Path) -> None:
    inside.write("elsewhere/reconciler/config.toml", 'nats-url = "nats://home:1"\n')
    home = str(tmp_path / "elsewhere")
    assert sources(inside, XDG_CONFIG_HOME=home)["nats-url"][0] == "nats://home:1"
    inside.write("named.toml", 'nats-url = "nats://named:1"\n')
    sources_by_setting = sources(inside, XDG_CONFIG_HOME=home, RECONCILER_CONFIG="named.toml")
    assert sources_by_setting["nats-url"] == ("nats://named:1", "file named.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nats-url = 4222", "reconciler.toml: nats-url must be a string"),
        (
            'url = "nats://h"',
            "reconciler.toml: unknown setting url; use one of nats-url, credentials",
        ),
        ("nats-url", "reconciler.toml: invalid: not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported(inside: Cli, content: str, message: str) -> None:
    inside.write("reconciler.toml", content)
    ran = inside.run("get")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert message in ran.err


def test_a_running_up_of_this_folder_is_found_before_the_file(live: Cli) -> None:
    live.write("settings.toml", 'nats-url = "nats://other:1"\ncredentials = "/secret.creds"\n')
    sources_by_setting = sources(live, RECONCILER_CONFIG="settings.toml")
    assert sources_by_setting["nats-url"][1] == "`reconciler up` in this directory"
    assert sources_by_setting["credentials"] == ("", "default"), "they are for the other bus"


def test_hints_repeat_the_flags_and_no_secret(live: Cli) -> None:
    url = sources(live)["nats-url"][0]
    with_password = url.replace("//", "//me:hunter2@")
    ran = live.run("get", "Shape", "ghost", "--nats-url", with_password)
    assert ran.err == (
        f"error: Shape 'ghost' does not exist in namespace default; "
        f"`reconciler get -A --nats-url {url}` "
        "lists all resources\n"
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:4222", "https://user:pw@h", "nats://a,ftp://b"])
def test_what_is_no_address_of_a_bus_is_reported_at_once(inside: Cli, url: str) -> None:
    ran = inside.run("get", "--nats-url", url)
    assert ran.status == 1
    assert "is not the URL of a NATS server; use nats://host:4222 or tls://host:4222" in ran.err
    assert "pw" not in ran.err


# --- completion


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["expl"], {"explain"}),
        (["get", "--out"], {"--outcome", "--output"}),
        (["get", "-o", ""], {"table", "wide", "json", "yaml", "name"}),
        (["get", "--outcome", "Conv"], {"Converged"}),
        (["events", "--event", "SpecD"], {"SpecDeclared"}),
        (["explain", "Sh"], {"Shape", "ShapeRef"}),
        (["get", "Provider"], {"ProviderConfig"}),
        (["get", "-n", "sys"], {"system"}),
        (["describe", "ProviderConfig", "def"], {"default"}),
        (["describe", "-n", "system", "Prov"], {"ProviderConfig"}),
        (["describe", "-n", "system", "ProviderConfig", ""], {"default"}),
        (["describe", "system/"], {"system/ProviderConfig/default"}),
        (["finalizer", "add", "ProviderConfig", ""], {"default"}),
        (["approve", "--hold", "Tw"], {"Twin"}),
        (["get", "--output", "=", "js"], {"json"}),
        (["deadletters", "re"], {"retry"}),
        (["nonsense", "x"], set[str]()),
        (["doctor", ""], set[str]()),
    ],
)
def test_words_are_completed(live: Cli, words: list[str], expected: set[str]) -> None:
    ran = live.ok("__complete", *words)
    assert expected <= set(ran.out.split())
    assert all(each.startswith(words[-1]) for each in ran.out.split())


def test_names_are_completed_by_nothing_where_no_bus_is(inside: Cli) -> None:
    ran = inside.ok("__complete", "get", "", "--nats-url")
    assert ran.err == ""


def test_bash_completes_with_the_script_and_nothing_is_written(tmp_path: Path) -> None:
    script = (
        f'reconciler() {{ {sys.executable} -m reconciler "$@"; }}\n'
        'eval "$(reconciler completion bash)"\n'
        "COMP_WORDS=(reconciler get --outc); COMP_CWORD=2; _reconciler\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    environment = {**Cli(tmp_path).environment(), "HOME": str(tmp_path)}
    process = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    )
    assert process.stdout.split() == ["--outcome"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_have_a_script_too(inside: Inside, name: str) -> None:
    assert "reconciler __complete" in inside.ok("completion", name).out


# --- label selectors


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("team=a", True),
        ("team==a,tier=web", True),
        ("team=b", False),
        ("team!=b", True),
        ("other!=b", True),
        ("team", True),
        ("!team", False),
        ("!other", True),
        ("team in (a,b)", True),
        ("team in (b, c),tier", False),
        ("team notin (b,c)", True),
        ("a.b/c=d", False),
        ("team=", False),
    ],
)
def test_a_selector_selects(text: str, matches: bool) -> None:
    assert parse_selector(text).matches({"team": "a", "tier": "web"}) is matches
