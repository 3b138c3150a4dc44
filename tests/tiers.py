"""Test tiers: the tests that one run contains, and the servers and processes that they may start.

A pytest plugin. Tiers are assigned by path in ``TIERS``, so that a run does not import the modules
of the other tiers. Without ``--tier``, a run of everything is the tier ``default``, and a run of
named files or tests contains all of them. See ``docs/testing.md``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

Tier = Literal["default", "ci", "night"]
ALL: Final = "all"

TIERS: Mapping[str, tuple[Tier, ...]] = {
    "tests/": ("default",),
    "tests/bus/test_streams.py": ("ci",),
    "tests/benchmarks/": ("ci",),
    "tests/benchmarks/test_history.py": ("default",),
    "tests/cli/test_imports.py": ("ci",),
    "tests/cli/test_newer_log.py": ("ci",),
    "tests/cli/test_story.py": ("ci",),
    "tests/cli/test_standard_streams.py": ("ci",),
    "tests/cli/test_up": ("ci",),
    "tests/cluster/": ("night",),
    "tests/components/": ("ci",),
    "tests/composites/test_composition.py": ("ci",),
    "tests/composites/test_contract.py": ("ci",),
    "tests/composites/test_deployment_on_docker.py": ("ci",),
    "tests/composites/test_kills.py": ("ci",),
    "tests/composites/test_monitoring.py": ("ci",),
    "tests/composites/test_parts_on_the_loop.py": ("ci",),
    "tests/composites/test_plan.py": ("ci",),
    "tests/crashes/": ("ci",),
    "tests/crashes/test_matrix.py": ("default", "ci"),
    "tests/crashes/test_separate_steps.py": ("default", "ci"),
    "tests/docker/": ("ci",),
    "tests/docs/test_backup_guide.py": ("ci",),
    "tests/docs/test_cluster_guide.py": ("ci",),
    "tests/docs/test_readme.py": ("ci",),
    "tests/docs/test_site.py": ("ci",),
    "tests/docs/test_tutorial.py": ("ci",),
    "tests/eventstore/test_outages.py": ("ci",),
    "tests/example_api/test_process.py": ("ci",),
    "tests/examples/": ("ci",),
    "tests/faults/": ("ci",),
    "tests/faults/test_fault_25_soak.py": ("night",),
    "tests/faulty_api/": ("night",),
    "tests/frozen/": ("ci",),
    "tests/git/": ("ci",),
    "tests/git/test_page.py": ("default",),
    "tests/git/test_rendering.py": ("default",),
    "tests/integrity/test_backup_file.py": ("ci",),
    "tests/integrity/test_copied_directory.py": ("ci",),
    "tests/integrity/test_damaged_log.py": ("ci",),
    "tests/integrity/test_lost_end.py": ("ci",),
    "tests/integrity/test_total_loss.py": ("ci",),
    "tests/invariants/": ("ci",),
    "tests/jetstream/test_connection.py": ("ci",),
    "tests/jetstream/test_embedded_server.py": ("ci",),
    "tests/observing/test_caddy_routes.py": ("ci",),
    "tests/observing/test_configurations.py": ("ci",),
    "tests/observing/test_disk_objects.py": ("ci",),
    "tests/observing/test_docker_objects.py": ("ci",),
    "tests/observing/test_foreign_listings.py": ("ci",),
    "tests/observing/test_nftables_services.py": ("ci",),
    "tests/observing/test_postgres_kinds.py": ("ci",),
    "tests/observing/test_watching.py": ("ci",),
    "tests/packaging/": ("ci",),
    "tests/providers/test_acme_limits.py": ("ci",),
    "tests/providers/test_caddy": ("ci",),
    "tests/providers/test_certificates": ("ci",),
    "tests/providers/test_changes.py": ("ci",),
    "tests/providers/test_disk": ("ci",),
    "tests/providers/test_docker": ("ci",),
    "tests/providers/test_http_limits.py": ("ci",),
    "tests/providers/test_jetstream_limits.py": ("ci",),
    "tests/providers/test_nftables": ("ci",),
    "tests/providers/test_postgres": ("ci",),
    "tests/providers/test_postgres_versions.py": ("night", "ci"),
    "tests/rest/test_confirm.py": ("ci",),
    "tests/rest/test_contract.py": ("ci",),
    "tests/rest/test_stories.py": ("ci",),
    "tests/scenarios/": ("ci",),
    "tests/sdk/test_outages.py": ("ci",),
    "tests/security/test_access.py": ("ci",),
    "tests/security/test_backup_roles.py": ("ci",),
    "tests/security/test_canary.py": ("ci",),
    "tests/security/test_secrets.py": ("ci",),
    "tests/security/test_tls.py": ("ci",),
    "tests/security/test_who.py": ("ci",),
    "tests/shop/": ("ci",),
    "tests/simulation/test_simulation.py": ("default", "ci", "night"),
    "tests/site/": ("ci",),
    "tests/test_run.py": ("ci",),
    "tests/test_second_run.py": ("night",),
    "tests/test_tiers.py": ("default", "night"),
}
"""Tiers by path; the longest prefix of a file's path counts.

In a file with several tiers, the mark ``tier`` names the tier of a test, and a test without the
mark belongs to the first one.
"""

SPREAD: Final = ("tests/simulation/test_simulation.py",)
"""Files whose tests share no module fixture: workers may run them at the same time."""

LONGEST_FIRST: Final = (
    "tests/crashes/",
    "tests/simulation/",
    "tests/site/",
    "tests/shop/",
    "tests/git/",
    "tests/composites/",
)
"""Paths that a run starts with: one worker runs a whole file, and the others would wait for it."""


@dataclass(frozen=True)
class Starts:
    """Processes that tests started directly, or may start, without their children."""

    servers: int
    """Processes of nats-server."""
    processes: int
    """All other processes."""


BUDGETS: Mapping[Tier, Starts] = {
    "default": Starts(servers=73, processes=150),
    "ci": Starts(servers=350, processes=4_600),
    "night": Starts(servers=150, processes=600),
}
"""The budget of each tier, with four workers. A commit that raises one gives the reason."""

_STARTS: Final = ("subprocess.Popen", "os.fork")
_REPORTED: Final = "starts"
_counted: Counter[str] = Counter()


def tiers_of(path: str) -> tuple[Tier, ...]:
    """Return the tiers that the tests of a file belong to, by its path in the repository."""
    matching = [prefix for prefix in TIERS if path.startswith(prefix)]
    return TIERS[max(matching, key=len)] if matching else ("default",)


# --- which tests a run contains


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    choices = (*get_args(Tier), ALL)
    group.addoption("--tier", choices=choices, default=None, help="run the tests of this tier")
    group.addoption(
        "--part", type=_part, default=None, metavar="K/N", help="run the K-th of N parts of it"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.tier is None:
        names_nothing = config.args_source is not pytest.Config.ArgsSource.ARGS
        config.option.tier = "default" if names_nothing else ALL
    config.addinivalue_line("markers", "tier(name): the tier, in a file that has several")
    sys.addaudithook(_count_start)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of other tiers without importing them."""
    tier: str = config.option.tier
    if tier == ALL or collection_path.suffix != ".py":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return True if tier not in tiers_of(path) else None


@pytest.hookimpl(trylast=True)  # after -k and -m have deselected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST_FIRST))
    tier: str = config.option.tier
    selected = [item for item in items if tier in (ALL, _tier_of(item))]
    part: tuple[int, int] | None = config.option.part
    if part is not None:
        number, parts = part
        selected = selected[number - 1 :: parts]
    left_out = set(items) - set(selected)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = selected


def _tier_of(item: pytest.Item) -> Tier:
    """Return the tier of a test; raises ``UsageError`` for a mark that contradicts ``TIERS``."""
    tiers = tiers_of(item.nodeid)
    mark = item.get_closest_marker("tier")
    if mark is None:
        return tiers[0]
    (named,) = mark.args
    if named not in tiers:
        raise pytest.UsageError(
            f"{item.nodeid}: marked for tier {named!r}, but its file has the tiers {tiers}; "
            "add it in tests/tiers.py"
        )
    return named


def _part(text: str) -> tuple[int, int]:
    """Return ``2/5`` as two numbers; raises ``ArgumentTypeError`` for anything else."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected K/N with K from 1 to N, such as 2/5")
    return int(match[1]), int(match[2])


# --- which worker runs a test


class _Scheduling(LoadScopeScheduling):
    """Gives all tests of a file to one worker, and those of ``SPREAD`` to any."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return nodeid if path in SPREAD else path


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _Scheduling(config, log)


# --- started processes


def _count_start(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _STARTS:
        return
    command = cast("Sequence[object]", arguments[1]) if len(arguments) > 1 else ()
    is_server = any("nats-server" in str(word) for word in command)
    _counted["servers" if is_server else "processes"] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Add the processes that a worker started."""
    output: Mapping[str, Any] = getattr(node, "workeroutput", {})
    _counted.update(output.get(_REPORTED, {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # so that this sets the final exit status
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    config = session.config
    if hasattr(config, "workerinput"):
        config.workeroutput[_REPORTED] = dict(_counted)  # pyright: ignore
    yield
    if not hasattr(config, "workerinput") and _exceeded(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    servers, processes = (f"{_counted[each]:,}" for each in ("servers", "processes"))
    tier = _whole_tier(config)
    if tier is None:
        if config.option.part:  # a whole tier is the sum of its parts, and so is its budget
            terminalreporter.line(
                f"started: {servers} nats-servers, {processes} other processes in this part"
            )
        return
    budget = BUDGETS[tier]
    terminalreporter.line(
        f"started: {servers} nats-servers (budget {budget.servers}), "
        f"{processes} other processes (budget {budget.processes})"
    )
    for what in _exceeded(config):
        terminalreporter.line(
            f"over budget: {what} in tier {tier}; share a fixture, or raise BUDGETS in "
            "tests/tiers.py and say why in the commit",
            red=True,
        )


def _exceeded(config: pytest.Config) -> list[str]:
    tier = _whole_tier(config)
    if tier is None:
        return []
    budget = BUDGETS[tier]
    limits = {"servers": budget.servers, "processes": budget.processes}
    return [f"{_counted[what]} {what}" for what, limit in limits.items() if _counted[what] > limit]


def _whole_tier(config: pytest.Config) -> Tier | None:
    """Return the tier of a run that contains a whole tier; ``None`` for any other run."""
    option = config.option
    is_partial = option.part or option.keyword or option.markexpr or option.collectonly
    named_files = config.args_source is pytest.Config.ArgsSource.ARGS
    if is_partial or named_files or option.tier == ALL:
        return None
    return option.tier
