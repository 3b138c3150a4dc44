"""Providers that kinds name as text: each exists, and a missing library is named."""

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
from reconciler.errors import ConfigurationError
from reconciler.provider import Provider
from reconciler.provider.kind import installed_kinds
from reconciler.provider.lazy import LazyProvider, lazy
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
"""By their kinds. A type checker cannot read the text, and checks these classes instead."""


def test_each_provider_that_a_kind_names_is_the_one_of_its_kind() -> None:
    kinds = {name: kind.connect for name, kind in installed_kinds().items()}
    named = {name: each for name, each in kinds.items() if isinstance(each, LazyProvider)}
    assert named.keys() == PROVIDERS.keys()
    for name, each in named.items():
        provider = PROVIDERS[name]
        assert each.target == f"{provider.__module__}:{provider.__qualname__}"
        inspect.signature(provider).bind(CONFIG, Secrets(), **dict(each.options))


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
def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    (tmp_path / "provider_of_things.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigurationError) as refused:
        lazy("provider_of_things:Things", extra="things")(CONFIG, Secrets())
    assert problem in str(refused.value)
    with pytest.raises(ImportError):
        lazy("provider_of_things:Things")(CONFIG, Secrets())


@pytest.mark.parametrize("target", ["provider_of_nothing:Things", "reconciler.no_such:Things"])
def test_a_wrong_name_is_a_defect_and_not_a_missing_library(target: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        lazy(target, extra="things")(CONFIG, Secrets())
