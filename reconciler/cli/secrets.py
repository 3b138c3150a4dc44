"""`reconciler secrets`: store, list, grant and remove secrets, without printing a value."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from events.excerpt import list_first
from events.names import DEFAULT_NAMESPACE, check_token
from events.secret import SECRET_NAME
from infra.named_files import MAX_KEY_BYTES, read_at_most
from infra.secrets import FileSecrets
from reconciler.cli.app import command_group
from reconciler.cli.connection import DATA_DIRECTORY, SECRETS_DIRECTORY
from reconciler.cli.console import print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.options import NamedPath, Output
from reconciler.cli.output import Format, print_structured
from reconciler.provider.secrets import SecretKey
from reconciler.secrecy import MIN_CHARACTERS
from reconciler.wiring import SECRETS_VARIABLE, secrets_folder

Owner = Annotated[
    str, Parameter(name=("--namespace", "-n"), help="Namespace that the secret belongs to.")
]
Reader = Annotated[str, Parameter(name="--to", help="Namespace that may read the secret.")]
FormerReader = Annotated[
    str, Parameter(name="--to", help="Namespace that may no longer read the secret.")
]
Directory = Annotated[
    NamedPath | None,
    Parameter(
        help="The secrets directory. Default: $RECONCILER_SECRETS, or the one that `up` uses in "
        "this directory."
    ),
]

secrets = command_group(
    "secrets",
    """Store, list, grant and remove the secrets that specs may name.

A secret belongs to a namespace, and only resources in that namespace can
use it unless you grant it to another namespace. Run the commands on each
machine that runs workers or observers. No command prints a value.

For example:

    reconciler secrets set db-password -n billing --from-file password.txt
    reconciler secrets list
    reconciler secrets grant db-password -n billing --to shop
    reconciler secrets revoke db-password -n billing --to shop
    reconciler secrets remove db-password -n billing
""",
)


class SecretSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A secret without its value, and the change that a command made."""

    namespace: str
    name: str
    granted_to: list[str]
    change: str | None = None


@secrets.command(name="set")
def set_secret(
    name: str,
    /,
    *,
    namespace: Owner = DEFAULT_NAMESPACE,
    from_file: NamedPath | None = None,
    directory: Directory = None,
    output: Output = "table",
) -> int:
    """Store a secret, or replace its value.

    The value comes from a file or from standard input. On a terminal, the
    command prompts for it and does not show your input. If you replace a
    value, Reconciler writes the new value to the objects that use it within
    seconds.

    For example:

        reconciler secrets set db-password -n billing
        reconciler secrets set db-password -n billing --from-file password.txt
        openssl rand -base64 24 | reconciler secrets set db-password -n billing

    Parameters
    ----------
    name
        Name of the secret.
    from_file
        File with the value. A line break at the end is not part of the value.
    """
    key = _parse_key(namespace, name)
    store = _open_store(directory)
    value = _read_value(key, from_file)
    is_new = store.put(key, value)
    if len(value.strip()) < MIN_CHARACTERS:
        sys.stderr.write(
            f"note: secret {key} has fewer than {MIN_CHARACTERS} characters; Reconciler cannot "
            "hide it if an API echoes it\n"
        )
    return _print_change(store, key, "stored" if is_new else "replaced", output)


@secrets.command(name="list")
def list_secrets(
    *,
    namespace: Annotated[
        str | None, Parameter(name=("--namespace", "-n"), help="Only secrets in this namespace.")
    ] = None,
    directory: Directory = None,
    output: Output = "table",
) -> int:
    """List the secrets and the namespaces to which they are granted.

    For example:

        reconciler secrets list
        reconciler secrets list -n billing -o json
    """
    store = _open_store(directory)
    visible = [
        _summarize(store, key) for key in store.list_keys() if namespace in (None, key.namespace)
    ]
    if output != "table":
        print_structured(visible, output)
    elif not visible:
        print("no secrets")
    else:
        rows = [(each.namespace, each.name, ", ".join(each.granted_to)) for each in visible]
        print_table(("NAMESPACE", "NAME", "GRANTED TO"), rows)
    return Exit.OK


@secrets.command
def grant(
    name: str,
    /,
    *,
    to: Reader,
    namespace: Owner = DEFAULT_NAMESPACE,
    directory: Directory = None,
    output: Output = "table",
) -> int:
    """Allow resources in another namespace to use a secret.

    They reference it as {$secret: NAME, namespace: OWNER}.

    For example:

        reconciler secrets grant db-password -n billing --to shop

    Parameters
    ----------
    name
        Name of the secret.
    """
    key = _parse_key(namespace, name)
    check_token(to, what="namespace")
    if to == namespace:
        raise UsageError(f"--to {to}: the secret already belongs to this namespace")
    store = _open_store_with(directory, key)
    store.grants.add(key, to)
    return _print_change(store, key, f"granted to {to}", output)


@secrets.command
def revoke(
    name: str,
    /,
    *,
    to: FormerReader,
    namespace: Owner = DEFAULT_NAMESPACE,
    directory: Directory = None,
    output: Output = "table",
) -> int:
    """Revoke the grant of a secret to a namespace.

    Objects that have the value keep it. To invalidate the old value, change
    the credential where it is used.

    For example:

        reconciler secrets revoke db-password -n billing --to shop

    Parameters
    ----------
    name
        Name of the secret.
    """
    key = _parse_key(namespace, name)
    store = _open_store(directory)
    if to not in store.grants.readers(key):
        raise CommandError(
            f"secret {key} is not granted to {to}; `reconciler secrets list` shows all grants"
        )
    store.grants.discard(key, to)
    return _print_change(store, key, f"no longer granted to {to}", output)


@secrets.command
def remove(
    name: str,
    /,
    *,
    namespace: Owner = DEFAULT_NAMESPACE,
    yes: bool = False,
    directory: Directory = None,
    output: Output = "table",
) -> int:
    """Remove a secret and its grants.

    Resources that reference it wait until it exists again. Their objects keep
    the current value. Reconciler keeps the value for seven days, to hide it if
    an API echoes it.

    For example:

        reconciler secrets remove db-password -n billing
        reconciler secrets remove db-password -n billing --yes

    Parameters
    ----------
    name
        Name of the secret.
    yes
        Remove the secret even if it is granted to other namespaces.
    """
    key = _parse_key(namespace, name)
    store = _open_store_with(directory, key)
    readers = store.grants.readers(key)
    if readers and not yes:
        raise CommandError(
            f"secret {key} is granted to {list_first(readers)}; add --yes to remove it with its "
            "grants"
        )
    store.discard(key)
    return _print_change(store, key, "removed", output)


def _parse_key(namespace: str, name: str) -> SecretKey:
    check_token(namespace, what="namespace")
    if SECRET_NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is not a valid secret name; use 1 to 128 of the characters "
            "A-Z a-z 0-9 _ . -, and begin with a letter, a digit or _"
        )
    return SecretKey(namespace, name)


def _open_store(directory: Path | None) -> FileSecrets:
    folder = directory or secrets_folder()
    if folder is None and DATA_DIRECTORY.is_dir():
        folder = DATA_DIRECTORY / SECRETS_DIRECTORY
    if folder is None:
        raise UsageError(
            f"the secrets directory is unknown; pass --directory, set {SECRETS_VARIABLE}, or run "
            "the command in the directory where you run `reconciler up`"
        )
    return FileSecrets(folder)


def _open_store_with(directory: Path | None, key: SecretKey) -> FileSecrets:
    store = _open_store(directory)
    if key not in store.list_keys():
        raise CommandError(f"secret {key} does not exist; `reconciler secrets list` shows all")
    return store


def _read_value(key: SecretKey, file: Path | None) -> str:
    if file is not None:
        content = read_at_most(file, MAX_KEY_BYTES)
    elif sys.stdin.isatty():
        content = getpass(f"Value of secret {key}: ").encode()
    else:
        content = sys.stdin.buffer.read()
    try:
        value = content.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise UsageError(
            f"the value of secret {key} is not UTF-8 text; encode it, for example with Base64"
        ) from None
    if not value:
        raise UsageError(f"the value of secret {key} is empty; provide a value")
    return value


def _summarize(store: FileSecrets, key: SecretKey, change: str | None = None) -> SecretSummary:
    return SecretSummary(key.namespace, key.name, store.grants.readers(key), change)


def _print_change(store: FileSecrets, key: SecretKey, change: str, output: Format) -> int:
    if output == "table":
        print(f"secret {key} {change}")
    else:
        print_structured(_summarize(store, key, change), output)
    return Exit.OK
