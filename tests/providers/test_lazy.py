"""Providers that kinds refer to by name: each exists, and errors name a missing library."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from events.provider_config import ProviderConfigSpec
from infra.providers.caddy.routes import RoutesProvider
from infra.providers.certificates.certificates import CertificatesProvider
from infra.providers.certificates.issuers import IssuersProvider
from infra.providers.composition.provider import CompositionProvider
from infra.providers.docker.containers import ContainersProvider
from infra.providers.docker.volumes import VolumesProvider
from infra.providers.git.sources import GitSourceProvider
from infra.providers.nftables.services import ServicesProvider
from infra.providers.postgres.databases import DatabasesProvider
from infra.providers.postgres.grants import GrantsProvider
from infra.providers.postgres.roles import DatabaseRolesProvider
from reconciler.cli.errors import format_error
from reconciler.errors import ConfigurationError, MissingExtraError
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import installed_kinds
from reconciler.provider.lazy import LazyProvider, check_extra, install_command, lazy
from reconciler.provider.secrets import Secrets

CONFIG = ProviderConfigSpec("things", "https://api.test")

PROVIDERS: Mapping[str, Callable[..., Provider]] = {
    "Certificate": CertificatesProvider,
    "Container": ContainersProvider,
    "Database": DatabasesProvider,
    "DatabaseRole": DatabaseRolesProvider,
    "Deployment": CompositionProvider,
    "GitSource": GitSourceProvider,
    "Grant": GrantsProvider,
    "Issuer": IssuersProvider,
    "ManifestSet": CompositionProvider,
    "Route": RoutesProvider,
    "Service": ServicesProvider,
    "Volume": VolumesProvider,
}
"""Providers by kind. A type checker cannot resolve names, so it checks these classes instead."""


def test_each_kind_names_its_own_provider() -> None:
    factories = {name: kind.connect for name, kind in installed_kinds().items()}
    lazy_factories = {
        name: factory for name, factory in factories.items() if isinstance(factory, LazyProvider)
    }
    assert lazy_factories.keys() == PROVIDERS.keys()
    for name, factory in lazy_factories.items():
        provider = PROVIDERS[name]
        assert factory.target == f"{provider.__module__}:{provider.__qualname__}"
        inspect.signature(provider).bind(CONFIG, Secrets(), CallPermit(), **dict(factory.options))


def test_two_factories_of_the_same_provider_are_equal() -> None:
    assert lazy("a:B", kind="C") == lazy("a:B", kind="C")
    assert hash(lazy("a:B", kind="C")) == hash(lazy("a:B", kind="C"))
    assert lazy("a:B", kind="C") != lazy("a:B", kind="D")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_library.part", "no_such_library is not installed; run pip install"),
        ("raise ImportError('no pq wrapper.\\nAttempts')", "no pq wrapper; run pip install"),
        ("raise ModuleNotFoundError(name='winreg')", f"not supported on {sys.platform}"),
    ],
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    (tmp_path / "provider_of_things.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigurationError) as refused:
        lazy("provider_of_things:Things", extra="things")(CONFIG, Secrets(), CallPermit())
    assert problem in str(refused.value)
    with pytest.raises(ImportError):
        lazy("provider_of_things:Things")(CONFIG, Secrets(), CallPermit())


def test_a_missing_library_is_reported_for_roles_and_commands() -> None:
    error = MissingExtraError("psycopg is not installed", install_command("postgres"))
    command = "psycopg is not installed; run pip install 'event-sourced-reconciler[postgres]'"
    assert format_error(error) == command
    assert str(error) == f"{command} where the roles run"


def test_an_extra_is_checked_against_the_distribution_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_extra("server", "`reconciler up`")

    def requires(_distribution: str) -> list[str]:
        return ["msgspec>=0.22", "no-such-library>=1; extra == 'server'"]

    monkeypatch.setattr("reconciler.provider.lazy.requires", requires)
    check_extra("other", "`reconciler up`")
    with pytest.raises(MissingExtraError) as missing:
        check_extra("server", "`reconciler up`")
    assert format_error(missing.value) == (
        "`reconciler up` requires the 'server' extra, but no-such-library is not installed; run "
        "pip install 'event-sourced-reconciler[server]'"
    )


@pytest.mark.parametrize("target", ["provider_of_nothing:Things", "reconciler.no_such:Things"])
def test_a_wrong_name_is_a_bug_rather_than_a_missing_library(target: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        lazy(target, extra="things")(CONFIG, Secrets(), CallPermit())
