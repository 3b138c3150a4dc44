"""Follow an API's change feed, whose changes are only hints for an earlier listing.

A broken, hanging or incorrect feed costs its API few requests, and listings as often as its
``ProviderConfig`` allows. Normal listings continue, so a broken feed only costs time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog

from events.provider_config import ProviderConfigSpec
from reconciler.errors import ConfigurationError, ProviderError
from reconciler.provider import Provider, WatchingProvider
from reconciler.resource.backoff import delay
from reconciler.roles.gate.api_gate import GateClosedError
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.observer.hint_calls import HintCalls
from reconciler.roles.runtime.cancellation import is_being_cancelled
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool

PACE_SECONDS = 1.0
"""Minimum interval of requests. A feed without changes should take longer to respond."""

_logger = structlog.get_logger(__name__)


def is_followed(config: ProviderConfigSpec) -> bool:
    """Return whether a hint can cause an earlier listing."""
    return config.least_resync_seconds < config.resync_seconds


class ChangeFeed:
    """The feed of one kind at one API. It calls ``hint`` when something may have changed."""

    def __init__(
        self,
        config_name: str,
        kind: str,
        *,
        configurations: Configurations,
        providers: ProviderPool,
        gates: ApiGates,
        hint: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._config_name = config_name
        self._kind = kind
        self._configurations = configurations
        self._providers = providers
        self._gates = gates
        self._hint = hint
        self._clock = clock
        self._jitter = jitter
        self._followed: Provider | None = None
        self._mark: str | None = None
        self._failures = 0

    async def run(self) -> None:
        """Follow until canceled, with a minimum interval between requests."""
        while True:
            began = self._clock()
            wait = await self._try_request()
            await asyncio.sleep(max(wait, began + PACE_SECONDS - self._clock()))

    async def _try_request(self) -> float:
        """Send one request, and return the seconds to wait after it."""
        try:
            is_news = await self._request()
        except GateClosedError as error:
            return error.retry_after_seconds or 0.0
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            return self._failed("the provider canceled its own call", None)
        except ProviderError as error:
            return self._failed(str(error), error.retry_after_seconds)
        except ConfigurationError as error:
            return self._failed(str(error), None)
        except Exception as error:
            _logger.debug("a change feed failed", exc_info=True)
            return self._failed(f"{type(error).__name__}: {error}", None)
        if self._failures:
            self._failures = 0
            _logger.info("a change feed works again", **self._place())
        # Wait after a change, because further changes cannot cause an earlier listing.
        return self._least_seconds() if is_news else 0.0

    async def _request(self) -> bool:
        """Send one request, and pass a change on. Return whether there was one."""
        provider = self._providers.get(self._config_name, self._kind)
        if not isinstance(provider, WatchingProvider):
            raise ConfigurationError(
                f"kind {self._kind!r}: declares the capability watch, but its provider has no "
                "method `changes`; implement it"
            )
        if provider is not self._followed:  # it may belong to another API, with other marks
            self._followed, self._mark = provider, None
        with HintCalls(self._gates.of(self._config_name), self._config_name):
            mark = await provider.changes(self._mark)
        # Also the first one: the listing before it may have missed changes.
        is_news = mark != self._mark
        self._mark = mark
        if is_news:
            self._hint()
        return is_news

    def _failed(self, why: str, wish_seconds: float | None) -> float:
        """Log the first failure, and return the back-off."""
        self._failures += 1
        if self._failures == 1:
            _logger.warning("a change feed failed; listings continue", why=why, **self._place())
        config = self._configurations.by_name.get(self._config_name)
        if config is None:
            return 0.0  # just withdrawn: this task is about to end
        return delay(config.retry, self._failures, self._jitter(), wish_seconds).total_seconds()

    def _least_seconds(self) -> float:
        config = self._configurations.by_name.get(self._config_name)
        return 0.0 if config is None else config.least_resync_seconds

    def _place(self) -> dict[str, str]:
        return {"config": self._config_name, "kind": self._kind}
