"""Follow an API's change feed. A change only makes the next listing begin earlier.

A broken, hanging or incorrect feed causes few requests, and no more listings than the
``ProviderConfig`` allows. Regular listings continue, so a broken feed only delays detection.
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
from reconciler.roles.runtime.cancellation import is_being_canceled
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool

MIN_INTERVAL_SECONDS = 1.0
"""Minimum interval between requests. A feed without changes should take longer to respond."""

_logger = structlog.get_logger(__name__)


def can_cause_listing(config: ProviderConfigSpec) -> bool:
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
        self._provider: Provider | None = None
        self._mark: str | None = None
        self._failures = 0

    async def run(self) -> None:
        """Follow the feed until canceled, with a minimum interval between requests."""
        while True:
            started_at = self._clock()
            wait = await self._try_request()
            await asyncio.sleep(max(wait, started_at + MIN_INTERVAL_SECONDS - self._clock()))

    async def _try_request(self) -> float:
        """Send one request, and return the seconds to wait after it."""
        try:
            has_changed = await self._request()
        except GateClosedError as error:
            return error.retry_after_seconds or 0.0
        except asyncio.CancelledError:
            if is_being_canceled():
                raise
            return self._handle_failure("the provider canceled its own call", None)
        except ProviderError as error:
            return self._handle_failure(str(error), error.retry_after_seconds)
        except ConfigurationError as error:
            return self._handle_failure(str(error), None)
        except Exception as error:
            _logger.debug("a change feed failed", exc_info=True)
            return self._handle_failure(f"{type(error).__name__}: {error}", None)
        if self._failures:
            self._failures = 0
            _logger.info("a change feed recovered", **self._log_context())
        # After a change, wait: further changes cannot make the listing begin even earlier.
        return self._min_interval_seconds() if has_changed else 0.0

    async def _request(self) -> bool:
        """Send one request, and report a change as a hint. Return whether there was a change."""
        provider = self._providers.get(self._config_name, self._kind)
        if not isinstance(provider, WatchingProvider):
            raise ConfigurationError(
                f"kind {self._kind!r}: declares the watch capability, but its provider has no "
                "`changes` method; implement it"
            )
        if provider is not self._provider:  # another API may use different marks
            self._provider, self._mark = provider, None
        with HintCalls(self._gates.of(self._config_name), self._config_name):
            mark = await provider.changes(self._mark)
        # The first mark also counts, because the preceding listing may have missed changes.
        has_changed = mark != self._mark
        self._mark = mark
        if has_changed:
            self._hint()
        return has_changed

    def _handle_failure(self, reason: str, retry_after_seconds: float | None) -> float:
        """Log the first failure, and return the backoff in seconds."""
        self._failures += 1
        if self._failures == 1:
            _logger.warning(
                "a change feed failed; listings continue", reason=reason, **self._log_context()
            )
        config = self._configurations.by_name.get(self._config_name)
        if config is None:
            return 0.0  # just withdrawn: this task ends soon
        return delay(
            config.retry, self._failures, self._jitter(), retry_after_seconds
        ).total_seconds()

    def _min_interval_seconds(self) -> float:
        config = self._configurations.by_name.get(self._config_name)
        return 0.0 if config is None else config.least_resync_seconds

    def _log_context(self) -> dict[str, str]:
        return {"config": self._config_name, "kind": self._kind}
