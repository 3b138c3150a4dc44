"""Check that every declared external API responds to the calls that an observer makes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, cast

from nats.aio.client import Client

from events.provider_config import ProviderConfigSpec, config_key
from infra.bus.event_log import open_log
from infra.secrets import open_stores
from projections.status import StatusRow
from reconciler.cli.api_state import find_blocked_api, find_failed_listings, find_silent_api
from reconciler.cli.checks.finding import Finding
from reconciler.cli.folded_log import current_models
from reconciler.cli.live_object import find_secrets_directory
from reconciler.errors import ConfigurationError, ProviderError
from reconciler.provider.kind import KindRegistry, installed_kinds
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.definitions import Definitions
from reconciler.roles.runtime.provider_pool import ProviderPool

_TIMEOUT_SECONDS = 5.0


async def check_apis(nc: Client) -> list[Finding]:
    """Request the first item of each API's scope, without writing anything.

    Skip APIs that workers are currently not calling, and APIs whose listings do not complete,
    because their first page proves nothing.
    """
    kinds, configurations, log = installed_kinds(), Configurations(), await open_log(nc)
    await Definitions(kinds).load(log)
    await configurations.load(log)
    if not configurations.by_name:
        remedy = (
            "Declare one with `reconciler apply -f FILE`, or start the example API with"
            " `reconciler up`."
        )
        return [Finding("API", "warn", "no ProviderConfig is declared", remedy)]
    rows = (await current_models(nc)).status
    pool = ProviderPool(kinds, configurations, open_stores(find_secrets_directory()))
    try:
        return await asyncio.gather(
            *(
                check_api(rows.get(str(config_key(name))), name, config, kinds, pool)
                for name, config in sorted(configurations.by_name.items())
            )
        )
    finally:
        await pool.close()


async def check_api(
    row: StatusRow | None,
    name: str,
    config: ProviderConfigSpec,
    kinds: KindRegistry,
    pool: ProviderPool,
) -> Finding:
    """Check one API by listing every kind that Reconciler lists."""
    check = f"API {name}"
    now = datetime.now(UTC)
    note = (
        find_silent_api(row)
        or find_blocked_api(row, now)
        or find_failed_listings(row, config.resync_seconds, now)
    )
    if note is not None:
        return note
    installed = [kind.name for kind in kinds.of_provider(config.provider)]
    watched = [kind for kind in installed if not config.kinds or kind in config.kinds]
    if not watched:
        return _describe_unwatched(check, config, installed)
    try:
        for kind in watched:
            if kinds[kind].lists:
                await _list_one(pool, name, kind, config)
    except ConfigurationError as error:
        remedy = (
            "Run `reconciler doctor` on a worker's machine. If the check succeeds there, ignore "
            "this warning."
        )
        return Finding(check, "warn", str(error), remedy)
    except (ProviderError, TimeoutError) as error:
        text = str(error) or f"no response within {_TIMEOUT_SECONDS:.0f} s"
        remedy = (
            "Check that the API is running and that spec.endpoint is correct. Until it responds, "
            "declarations wait, and nothing is lost."
        )
        return Finding(check, "fail", f"{config.endpoint}: {text}", remedy)
    unlistable = [kind for kind in watched if not kinds[kind].lists]
    if unlistable:
        note = (
            f"{', '.join(unlistable)} cannot be listed, so each declared object is read separately"
        )
        if unlistable == watched:
            return Finding(check, "ok", f"{config.endpoint}: not called; {note}")
        return Finding(check, "ok", f"{config.endpoint} responds ({', '.join(watched)}); {note}")
    return Finding(check, "ok", f"{config.endpoint} responds ({', '.join(watched)})")


def _describe_unwatched(check: str, config: ProviderConfigSpec, installed: list[str]) -> Finding:
    if not installed:
        remedy = (
            f"Install the package of provider {config.provider!r} here and where the roles run."
        )
        text = f"provider {config.provider!r} has no kind installed here"
        return Finding(check, "warn", text, remedy)
    selected, known = ", ".join(config.kinds), ", ".join(installed)
    text = f"spec.kinds names {selected}, but provider {config.provider!r} has only {known} here"
    remedy = (
        "Declare the ProviderConfig with its provider's kinds, or omit spec.kinds to "
        "select all of them. If another package provides the named kind, install it here and where "
        "the roles run."
    )
    return Finding(check, "warn", text, remedy)


async def _list_one(pool: ProviderPool, name: str, kind: str, config: ProviderConfigSpec) -> None:
    provider = pool.get(name, kind)
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        pages = cast("Any", provider.pages(config.scope, page_size=1))
        async with aclosing(pages):
            async for _page in pages:
                return
