"""Secret stores: permissions and error messages."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from events.names import InvalidNameError
from events.secret import SecretRef
from infra.secrets import FileSecrets, open_stores
from infra.secrets.environment import VARIABLE, parse_variable_list
from infra.secrets.replaced import REPLACED_SECONDS
from reconciler.errors import ConfigurationError
from reconciler.provider.secrets import SecretKey, Secrets

DB = SecretKey("billing", "db")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


def secrets(folder: Path) -> Secrets:
    stores = open_stores(folder)
    return Secrets(None, stores.by_name, key=stores.key)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_a_generated_secret_is_a_file_that_only_its_owner_may_read(folder: Path) -> None:
    reference = await secrets(folder).store(SecretRef("db"), "s3cr3t-value", "billing")
    assert [_mode(path) for path in (folder / "billing" / "db", folder / "billing", folder)] == [
        0o600,
        0o700,
        0o700,
    ]
    assert await secrets(folder).value(reference, "billing") == "s3cr3t-value"
    assert "s3cr3t" not in repr(reference)
    await secrets(folder).remove(reference, "billing")
    assert await secrets(folder).find(reference, "billing") is None
    await secrets(folder).remove(reference, "billing")


async def test_a_digest_is_the_same_in_each_process_and_different_in_each_folder(
    folder: Path, tmp_path: Path
) -> None:
    first = await secrets(folder).store(SecretRef("db"), "s3cr3t-value", "billing")
    second = await secrets(folder).find(SecretRef("db"), "billing")
    assert second == first
    other_reference = await secrets(tmp_path / "other").store(
        SecretRef("db"), "s3cr3t-value", "billing"
    )
    assert other_reference.digest != first.digest, (
        "without the key, no client can test guesses against it"
    )
    rotated = await secrets(folder).store(SecretRef("db"), "another-value", "billing")
    assert rotated.digest != first.digest


async def test_a_file_that_others_may_read_is_refused(folder: Path) -> None:
    FileSecrets(folder).put(DB, "s3cr3t-value\n")
    path = folder / "billing" / "db"
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600 on it") as caught:
        await secrets(folder).value(SecretRef("db"), "billing")
    assert "s3cr3t" not in str(caught.value)
    path.chmod(0o600)
    assert await secrets(folder).value(SecretRef("db"), "billing") == "s3cr3t-value"


def test_a_folder_that_others_may_list_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="chmod 700 on it"):
        open_stores(folder)


async def test_the_error_for_a_missing_secret_names_its_path(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="secrets set db -n billing"):
        await secrets(folder).value(SecretRef("db"), "billing")
    with pytest.raises(ConfigurationError, match="secret store 'vault' is unknown"):
        await secrets(folder).value(SecretRef("db", "vault"), "billing")


# --- the environment


async def test_a_listed_variable_is_read_for_its_namespace_and_never_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t-value")
    monkeypatch.setenv(VARIABLE, "billing/DB_PASSWORD, shop/OTHER")
    stores, reference = secrets(folder), SecretRef("DB_PASSWORD", "env")
    assert await stores.value(reference, "billing") == "s3cr3t-value"
    assert await stores.find(reference, "shop") is None
    assert await stores.find(SecretRef("DB_PASSWORD", "env", namespace="billing"), "shop") is None
    with pytest.raises(ConfigurationError, match="add shop/DB_PASSWORD to RECONCILER_SECRET_ENV"):
        await stores.value(reference, "shop")
    with pytest.raises(ConfigurationError, match="use the 'files' store") as caught:
        await stores.store(SecretRef("OTHER", "env"), "s3cr3t-value", "shop")
    assert "s3cr3t" not in str(caught.value)
    assert stores.secrecy.is_in("s3cr3t-value")


async def test_without_a_list_the_env_store_does_not_exist(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t-value")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(
        ConfigurationError, match="can enable the 'env' store with RECONCILER_SECRET_ENV"
    ):
        await secrets(folder).value(SecretRef("DB_PASSWORD", "env"), "billing")


@pytest.mark.parametrize(
    "name",
    [
        "RECONCILER_NATS_URL",
        "reconciler_nkey",
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_CLIENT_SECRET",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GCP_KEY",
        "GITHUB_TOKEN",
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "NATS_PASSWORD",
        "VAULT_TOKEN",
    ],
)
def test_process_and_cloud_variables_cannot_be_listed(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=f"'billing/{name}' is refused"):
        parse_variable_list(f"billing/OK,billing/{name}")
    monkeypatch.setenv(VARIABLE, f"billing/{name}")
    with pytest.raises(ConfigurationError, match=VARIABLE):
        open_stores(folder)


@pytest.mark.parametrize(
    "entry", ["DB_PASSWORD", "a.b/DB", "billing/", "/DB", "billing/A/B", "b/*"]
)
def test_an_entry_that_names_no_variable_of_a_namespace_is_refused(entry: str) -> None:
    with pytest.raises(ConfigurationError, match=VARIABLE):
        parse_variable_list(entry)


# --- replaced values


async def test_a_restarted_process_hides_the_values_that_were_replaced_or_removed(
    folder: Path,
) -> None:
    first = await secrets(folder).store(SecretRef("db"), "first-s3cr3t-value", "billing")
    await secrets(folder).store(SecretRef("db"), "second-s3cr3t-value", "billing")
    await secrets(folder).remove(first, "billing")
    assert await secrets(folder).find(first, "billing") is None
    assert FileSecrets(folder).list_keys() == []
    assert sorted(FileSecrets(folder).read_all()) == ["first-s3cr3t-value", "second-s3cr3t-value"]
    replaced = folder / ".replaced"
    assert {_mode(replaced), *map(_mode, replaced.iterdir())} == {0o700, 0o600}


def test_a_replaced_value_is_stored_once_and_for_a_week(folder: Path) -> None:
    store = FileSecrets(folder)
    for value in ("first-s3cr3t-value", "second-s3cr3t-value") * 3:
        store.put(DB, value)
    store.put(DB, "second-s3cr3t-value")  # the same value replaces nothing
    files = {each.read_text(): each for each in (folder / ".replaced").iterdir()}
    assert len(files) == len(list((folder / ".replaced").iterdir())) == 2
    old = time.time() - REPLACED_SECONDS
    os.utime(files["first-s3cr3t-value"], (old + 60, old + 60))
    assert "first-s3cr3t-value" in store.read_all()
    os.utime(files["first-s3cr3t-value"], (old - 60, old - 60))
    assert store.read_all() == ["second-s3cr3t-value", "second-s3cr3t-value"]
    assert list((folder / ".replaced").iterdir()) == [files["second-s3cr3t-value"]]


def test_a_short_value_is_replaced_without_a_copy(folder: Path) -> None:
    store = FileSecrets(folder)
    store.put(DB, "1234")
    store.put(DB, "s3cr3t-value")
    assert not (folder / ".replaced").exists(), "no text is searched for so short a value"


# --- namespaces


async def test_a_namespace_reads_its_own_secrets_and_granted_ones(folder: Path) -> None:
    store = FileSecrets(folder)
    store.put(DB, "s3cr3t-value")
    foreign = SecretRef("db", namespace="billing")
    stores = secrets(folder)
    assert await stores.find(SecretRef("db"), "shop") is None
    errors: list[str] = []
    for name in ("db", "absent"):
        with pytest.raises(ConfigurationError) as caught:
            await stores.value(SecretRef(name, namespace="billing"), "shop")
        errors.append(str(caught.value).replace(name, "NAME"))
    assert errors[0] == errors[1], "existence is not revealed"
    store.grants.add(DB, "shop")
    assert await stores.value(foreign, "shop") == "s3cr3t-value"
    assert await stores.find(foreign, "web") is None
    store.grants.discard(DB, "shop")
    assert await stores.find(foreign, "shop") is None
    assert _mode(folder / ".grants.json") == 0o600


async def test_not_even_the_system_reads_without_a_grant(folder: Path) -> None:
    FileSecrets(folder).put(DB, "s3cr3t-value")
    assert await secrets(folder).find(SecretRef("db", namespace="billing"), "system") is None


async def test_a_damaged_grants_file_grants_nothing(folder: Path) -> None:
    store = FileSecrets(folder)
    store.put(DB, "s3cr3t-value")
    store.grants.add(DB, "shop")
    (folder / ".grants.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is damaged"):
        await secrets(folder).find(SecretRef("db", namespace="billing"), "shop")
    assert await secrets(folder).value(SecretRef("db"), "billing") == "s3cr3t-value"


async def test_a_recreated_secret_is_not_granted(folder: Path) -> None:
    store = FileSecrets(folder)
    store.put(DB, "s3cr3t-value")
    store.grants.add(DB, "shop")
    assert store.discard(DB)
    store.put(DB, "another-value")
    assert await secrets(folder).find(SecretRef("db", namespace="billing"), "shop") is None


async def test_a_namespace_cannot_write_or_remove_another_namespaces_secret(folder: Path) -> None:
    store = FileSecrets(folder)
    store.put(DB, "s3cr3t-value")
    store.grants.add(DB, "shop")
    foreign = SecretRef("db", namespace="billing")
    with pytest.raises(ConfigurationError, match="only the namespace of a secret may write it"):
        await secrets(folder).store(foreign, "another-value", "shop")
    with pytest.raises(ConfigurationError, match="only the namespace of a secret may write it"):
        await secrets(folder).remove(foreign, "shop")
    assert await secrets(folder).value(foreign, "billing") == "s3cr3t-value"


def test_grants_added_concurrently_are_all_kept(folder: Path) -> None:
    FileSecrets(folder).put(DB, "s3cr3t-value")
    readers = [f"reader-{number}" for number in range(20)]

    def add(reader: str) -> None:
        FileSecrets(folder).grants.add(DB, reader)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, readers))
    assert FileSecrets(folder).grants.readers(DB) == sorted(readers)


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "/etc/passwd", "x\0", ".grants.json", "x\n"])
async def test_a_name_cannot_leave_its_namespaces_directory(folder: Path, name: str) -> None:
    store = FileSecrets(folder)
    for key in (SecretKey("billing", name), SecretKey(name, "x")):
        with pytest.raises((ConfigurationError, InvalidNameError)):
            await store.read(key, key.namespace)
        with pytest.raises((ConfigurationError, InvalidNameError)):
            store.put(key, "s3cr3t-value")


async def test_a_link_out_of_its_namespace_is_refused(folder: Path, tmp_path: Path) -> None:
    store = FileSecrets(folder)
    store.put(DB, "s3cr3t-value")
    outside = tmp_path / "outside"
    outside.touch(mode=0o600)
    (folder / "shop").mkdir()
    for name, target in (("a", "../billing/db"), ("b", outside), ("c", folder / "billing" / "db")):
        (folder / "shop" / name).symlink_to(target)
        with pytest.raises(ConfigurationError, match="symbolic link out of"):
            await store.read(SecretKey("shop", name), "shop")
    (folder / "web").symlink_to(folder / "billing")
    with pytest.raises(ConfigurationError, match="symbolic link out of"):
        await store.read(SecretKey("web", "db"), "web")
    (folder / "billing" / "alias").symlink_to("db")
    assert await store.read(SecretKey("billing", "alias"), "billing") == "s3cr3t-value"


# --- names and errors


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "s3cr3t value"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="never the secret itself") as caught:
        SecretRef(name)
    assert "s3cr3t" not in str(caught.value)


async def test_an_error_never_contains_the_content_of_a_file(folder: Path) -> None:
    stores = secrets(folder)
    await stores.store(SecretRef("db"), "s3cr3t-value", "billing")
    assert stores.secrecy.hide("refused: s3cr3t-value") == "refused: ***"
