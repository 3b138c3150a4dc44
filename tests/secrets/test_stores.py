"""Stores of secrets: who may read them, and what errors say."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.secret import SecretRef
from infra.secrets import FileSecrets, open_stores
from reconciler.errors import ConfigurationError
from reconciler.provider.secrets import Secrets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


def secrets(folder: Path) -> Secrets:
    stores = open_stores(folder)
    return Secrets(None, stores.by_name, key=stores.key)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_a_generated_secret_is_a_file_that_nobody_else_may_read(folder: Path) -> None:
    kept = await secrets(folder).keep(SecretRef("db"), "s3cr3t-value")
    assert [_mode(folder / "db"), _mode(folder)] == [0o600, 0o700]
    assert await secrets(folder).value(kept) == "s3cr3t-value"
    assert "s3cr3t" not in repr(kept)
    await secrets(folder).remove(kept)
    assert await secrets(folder).find(kept) is None
    await secrets(folder).remove(kept)


async def test_a_digest_is_the_same_in_each_process_and_another_in_each_folder(
    folder: Path, tmp_path: Path
) -> None:
    one = await secrets(folder).keep(SecretRef("db"), "s3cr3t-value")
    again = await secrets(folder).find(SecretRef("db"))
    assert again == one
    other = await secrets(tmp_path / "other").keep(SecretRef("db"), "s3cr3t-value")
    assert other.digest != one.digest, "without the key nobody can try passwords against it"
    rotated = await secrets(folder).keep(SecretRef("db"), "another-value")
    assert rotated.digest != one.digest


async def test_a_file_that_others_may_read_is_refused(folder: Path) -> None:
    FileSecrets(folder)
    (folder / "db").write_text("s3cr3t-value\n")
    (folder / "db").chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600 on it") as caught:
        await secrets(folder).value(SecretRef("db"))
    assert "s3cr3t" not in str(caught.value)
    (folder / "db").chmod(0o600)
    assert await secrets(folder).value(SecretRef("db")) == "s3cr3t-value"


def test_a_folder_that_others_may_look_into_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="chmod 700 on it"):
        open_stores(folder)


async def test_what_is_not_there_says_where_it_belongs(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'db' is missing in store 'files'; add it"):
        await secrets(folder).value(SecretRef("db"))
    with pytest.raises(ConfigurationError, match="secret store 'vault' is unknown"):
        await secrets(folder).value(SecretRef("db", "vault"))


async def test_the_environment_is_read_and_never_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "s3cr3t-value")
    assert await secrets(folder).value(SecretRef("DB_PASSWORD", "env")) == "s3cr3t-value"
    with pytest.raises(ConfigurationError, match="use store 'files'") as caught:
        await secrets(folder).keep(SecretRef("OTHER", "env"), "s3cr3t-value")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "s3cr3t value"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="never the secret itself") as caught:
        SecretRef(name)
    assert "s3cr3t" not in str(caught.value)


async def test_an_error_never_repeats_what_was_read(folder: Path) -> None:
    known = secrets(folder)
    await known.keep(SecretRef("db"), "s3cr3t-value")
    assert known.secrecy.hide("refused: s3cr3t-value") == "refused: ***"
