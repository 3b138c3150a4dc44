"""Connection settings and the hints that repeat them, completion, label selectors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.cli.selectors import parse_selector
from tests.cli.runner import Cli, InProcessCli


def sources(cli: Cli, *arguments: str, **environment: str) -> dict[str, tuple[str, str]]:
    settings = cli.run("config", "view", "-o", "json", *arguments, **environment).json
    return {setting["name"]: (setting["value"], setting["source"]) for setting in settings}


def test_flags_override_the_environment_and_the_environment_overrides_the_file(
    local_cli: Cli,
) -> None:
    local_cli.write(
        "reconciler.toml", 'nats-url = "nats://file:1"\ntls-ca = "/ca"\nnkey = "/nkey"\n'
    )
    sources_by_setting = sources(local_cli)
    assert sources_by_setting["nats-url"] == ("nats://file:1", "file reconciler.toml")
    sources_by_setting = sources(
        local_cli, RECONCILER_NATS_URL="nats://env:1", RECONCILER_CREDENTIALS="/creds"
    )
    assert sources_by_setting["nats-url"] == ("nats://env:1", "environment RECONCILER_NATS_URL")
    assert sources_by_setting["tls-ca"] == ("/ca", "file reconciler.toml")
    assert sources_by_setting["nkey"] == ("", "default"), "all credentials come from one source"
    sources_by_setting = sources(
        local_cli, "--nats-url", "nats://me:secret@flag:1", RECONCILER_NATS_URL="nats://e"
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
def test_an_empty_path_does_not_mean_the_current_directory(
    local_cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    refused = local_cli.run(*arguments)
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
    local_cli: Cli, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    refused = local_cli.run(*arguments, RECONCILER_NATS_URL="nats://127.0.0.1:1", **environment)
    assert refused.status == 1
    assert "/dev/zero: " in refused.err
    assert "larger than 1 MiB" in refused.err
    assert refused.err.count("\n") == 1


def test_the_settings_file_can_be_in_another_directory(local_cli: Cli, tmp_path: Path) -> None:
    local_cli.write("elsewhere/reconciler/config.toml", 'nats-url = "nats://home:1"\n')
    home = str(tmp_path / "elsewhere")
    assert sources(local_cli, XDG_CONFIG_HOME=home)["nats-url"][0] == "nats://home:1"
    local_cli.write("named.toml", 'nats-url = "nats://named:1"\n')
    sources_by_setting = sources(local_cli, XDG_CONFIG_HOME=home, RECONCILER_CONFIG="named.toml")
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
def test_an_invalid_settings_file_is_reported(local_cli: Cli, content: str, message: str) -> None:
    local_cli.write("reconciler.toml", content)
    result = local_cli.run("get")
    assert (result.status, result.err.count("\n")) == (1, 1)
    assert message in result.err


def test_a_running_up_in_this_directory_overrides_the_file(live: Cli) -> None:
    live.write("settings.toml", 'nats-url = "nats://other:1"\ncredentials = "/secret.creds"\n')
    sources_by_setting = sources(live, RECONCILER_CONFIG="settings.toml")
    assert sources_by_setting["nats-url"][1] == "`reconciler up` in this directory"
    assert sources_by_setting["credentials"] == ("", "default"), "they are for the other bus"


def test_hints_repeat_the_flags_but_no_secret(live: Cli) -> None:
    url = sources(live)["nats-url"][0]
    with_password = url.replace("//", "//me:hunter2@")
    result = live.run("get", "Shape", "ghost", "--nats-url", with_password)
    assert result.err == (
        f"error: Shape 'ghost' does not exist in namespace default; "
        f"`reconciler get -A --nats-url {url}` "
        "lists all resources\n"
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:4222", "https://user:pw@h", "nats://a,ftp://b"])
def test_an_invalid_bus_url_is_reported_immediately(local_cli: Cli, url: str) -> None:
    result = local_cli.run("get", "--nats-url", url)
    assert result.status == 1
    assert "is not a NATS server URL; use nats://host:4222 or tls://host:4222" in result.err
    assert "pw" not in result.err


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
    result = live.ok("__complete", *words)
    assert expected <= set(result.out.split())
    assert all(word.startswith(words[-1]) for word in result.out.split())


def test_no_names_are_completed_without_a_bus(local_cli: Cli) -> None:
    result = local_cli.ok("__complete", "get", "", "--nats-url")
    assert result.err == ""


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
def test_other_shells_also_have_a_script(local_cli: InProcessCli, name: str) -> None:
    assert "reconciler __complete" in local_cli.ok("completion", name).out


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
def test_a_selector_matches_labels(text: str, matches: bool) -> None:
    assert parse_selector(text).matches({"team": "a", "tier": "web"}) is matches
