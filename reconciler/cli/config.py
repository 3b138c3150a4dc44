"""`reconciler config`: show the effective settings and their sources."""

from __future__ import annotations

from reconciler.cli.app import command_group
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection
from reconciler.cli.console import print_table
from reconciler.cli.options import Output
from reconciler.cli.output import print_structured
from reconciler.cli.settings import NAMES, Setting, flag_name

config = command_group(
    "config",
    """Show the effective settings and the source of each.

A setting comes from the first of these sources that has it:

    1. a flag, such as --tls-ca
    2. its environment variable, such as RECONCILER_TLS_CA
    3. a `reconciler up` that is running in this directory
    4. the settings file: $RECONCILER_CONFIG, else ./reconciler.toml,
       else ~/.config/reconciler/config.toml

For example:

    reconciler config view
    echo 'nats-url = "tls://nats.example.com:4222"' > reconciler.toml
""",
)


@config.command
def view(*, output: Output = "table", connection: Connection = DEFAULT_CONNECTION) -> int:
    """Show each setting with its value and source. Does not need a server.

    For example:

        reconciler config view
        reconciler config view -o json
    """
    from infra.jetstream.connection import redact_url  # noqa: PLC0415

    settings = connection.settings()
    rows = [_to_shown_setting(settings.get(name), name) for name in NAMES]
    rows = [Setting(each.name, redact_url(each.value), each.source) for each in rows]
    if output == "table":
        print_table(
            ("SETTING", "VALUE", "SOURCE"), ((each.name, each.value, each.source) for each in rows)
        )
    else:
        print_structured(rows, output)
    return 0


def _to_shown_setting(setting: Setting | None, name: str) -> Setting:
    key = flag_name(name).removeprefix("--")
    if setting is not None:
        return Setting(key, setting.value, setting.source)
    return Setting(key, "", "not set" if name == "nats_url" else "default")
