"""A provider whose errors contain no secrets, and whose responses use bounded memory.

Returned objects may contain secrets. ``roles.objects.object_secrets`` masks them before they are
reported, because that requires the strings that are already in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from events.external import ExternalObject
from events.log import Action
from events.provider_config import Scope
from events.reference import resolved_secrets_in
from reconciler.errors import ConfigurationError, NotDoneError, ProviderError
from reconciler.provider import (
    Effect,
    IdentifiedProvider,
    ProbedProvider,
    Provider,
    VolatileProvider,
    WatchingProvider,
)
from reconciler.provider.data_check import DATA_CHECK, check_data
from reconciler.provider.named_objects import NamedObjects
from reconciler.provider.secrets import Secrets
from reconciler.response_budget import MAX_CALLS_BYTES, MAX_LISTING_BYTES, ResponseBudget, Share
from reconciler.secrecy import Secrecy

MAX_PAGES: Final = 20_000
"""Limit on pages per listing, to stop endless listings: 250,000 objects at 13 per page."""

MAX_ERROR_CHARACTERS: Final = 16_384
"""Limit on an error message, which is truncated before it is searched for secrets.

An API may respond with megabytes, and searching 1 MiB blocks this process for a second.
"""

_SUPPRESSED = (
    "the API's error message is suppressed: it may contain an earlier value of a secret, which "
    "this process never read and cannot mask"
)

_T = TypeVar("_T")
_P = ParamSpec("_P")


class GuardedProvider:
    """Wraps a ``reconciler.provider.Provider``, and counts its calls."""

    def __init__(
        self,
        provider: Provider,
        secrets: Secrets,
        learn_secrets: Callable[[], object] = lambda: None,
    ) -> None:
        self._provider = provider
        self._secrets = secrets
        # after each response, and before anything in it is searched for secrets
        self._learn_secrets = learn_secrets
        self._secrecy = secrets.secrecy
        self._calls = 0
        self._budget = ResponseBudget(
            "the responses to concurrent calls of this API", MAX_CALLS_BYTES
        )
        self._idle = asyncio.Event()

    async def wait_until_idle(self) -> None:
        """Wait until no call is in progress."""
        while self._calls:
            self._idle.clear()
            await self._idle.wait()

    async def create(self, action: Action) -> Effect:
        """Create an object."""
        return await self._call(action, self._provider.create, action)

    async def update(self, action: Action) -> Effect:
        """Update an object."""
        await self._check_data(action)
        return await self._call(action, self._provider.update, action)

    async def delete(self, action: Action) -> Effect:
        """Delete an object."""
        await self._check_data(action)
        return await self._call(action, self._provider.delete, action)

    async def _check_data(self, action: Action) -> None:
        """Compare the object's data with the decision, if the provider itself does not."""
        if DATA_CHECK.get() is None or isinstance(self._provider, NamedObjects):
            return
        existing = await self.read(action.external_name, action.uid)
        if existing is None or existing.written_by == action.idempotency_key:
            return  # an earlier attempt at the action has begun, and continues
        if action.uid in (None, existing.uid):
            check_data(existing)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read an object."""
        return await self._call(None, self._provider.read, external_name, uid)

    async def _call(
        self,
        action: Action | None,
        method: Callable[_P, Awaitable[_T]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        share = Share(self._budget)
        self._calls += 1
        try:
            try:  # as ``mask_secrets`` does, which costs more than the rest of this method
                try:
                    with share:
                        return await method(*args, **kwargs)
                finally:
                    self._learn_secrets()
            except Exception as error:
                masked = _mask_error(error, self._secrecy)
                if masked is error:
                    raise
                raise masked from None
        except ProviderError as error:
            if action is not None:
                self._suppress_earlier_response(error, action)
            raise
        finally:
            share.release()
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    def _suppress_earlier_response(self, error: ProviderError, action: Action) -> None:
        """Remove the message if the API may repeat its response to an earlier call.

        Such a response may contain a value of a secret that this process never had.
        """
        if any(
            self._secrets.has_other_value(each, action.namespace)
            for each in resolved_secrets_in(action.fields)
        ):
            error.message = _SUPPRESSED
            error.args = (_SUPPRESSED,)
            error.__cause__ = error.__context__ = None

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the objects of a scope."""
        share = Share(ResponseBudget("the responses of this listing", MAX_LISTING_BYTES))
        pages = aiter(self._provider.pages(scope, page_size=page_size))
        with mask_secrets(self._secrecy):
            for _ in range(MAX_PAGES):
                try:
                    with share:  # not while the caller processes the page
                        page = await anext(pages, None)
                finally:
                    self._learn_secrets()
                if page is None:
                    return
                yield page
            raise NotDoneError(f"the listing has more than {MAX_PAGES} pages", responded=True)

    async def uptime_seconds(self) -> float | None:
        """Return the age of the API's process; None if its objects do not end with it."""
        if not isinstance(self._provider, VolatileProvider):
            return None
        return await self._call(None, self._provider.uptime_seconds)

    async def system_id(self) -> str | None:
        """Return the id of the system; None if the API has none."""
        if not isinstance(self._provider, IdentifiedProvider):
            return None
        return await self._call(None, self._provider.system_id)

    async def probe(self) -> bool:
        """Check that the API responds. Return False if the provider has no such call."""
        if not isinstance(self._provider, ProbedProvider):
            return False
        return await self._call(None, self._provider.probe)

    async def close(self) -> None:
        """Close the connections."""
        with mask_secrets(self._secrecy):
            await self._provider.close()


class GuardedWatchingProvider(GuardedProvider):
    """Wraps a ``reconciler.provider.WatchingProvider``."""

    def __init__(
        self,
        provider: WatchingProvider,
        secrets: Secrets,
        learn_secrets: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(provider, secrets, learn_secrets)
        self._watching = provider

    async def changes(self, after: str | None) -> str:
        """Wait for a change, and return its mark."""
        share = Share(self._budget)
        try:
            with mask_secrets(self._secrecy), share:
                try:
                    return await self._watching.changes(after)
                finally:
                    self._learn_secrets()
        finally:
            share.release()


def guard_provider(
    provider: Provider, secrets: Secrets, learn_secrets: Callable[[], object] = lambda: None
) -> GuardedProvider:
    """Wrap a provider, so that its errors contain no secrets.

    ``learn_secrets`` is called after each response: another process may already have used a new
    value of a secret, and the API may return it to this process.
    """
    if isinstance(provider, WatchingProvider):
        return GuardedWatchingProvider(provider, secrets, learn_secrets)
    return GuardedProvider(provider, secrets, learn_secrets)


@contextmanager
def mask_secrets(secrecy: Secrecy) -> Generator[None]:
    """Mask secrets in errors. An error that cannot be changed is replaced."""
    try:
        yield
    except Exception as error:
        masked = _mask_error(error, secrecy)
        if masked is error:
            raise
        raise masked from None


def _mask_error(error: Exception, secrecy: Secrecy) -> Exception:
    """Return an error without secrets: the same one, or a replacement if it cannot be changed."""
    if isinstance(error, ProviderError):
        error.message = _mask(error.message, secrecy)
        error.args = tuple(_mask_part(each, secrecy) for each in error.args)
        if _cause_may_leak(error, secrecy):
            error.__cause__ = error.__context__ = None
        return error
    is_configuration = isinstance(error, ConfigurationError)
    searched = str(error) if is_configuration else repr(error)
    if not _may_leak(searched, secrecy) and not _cause_may_leak(error, secrecy):
        return error
    if is_configuration:
        return ConfigurationError(_mask(searched, secrecy))
    return ProviderError(_mask(f"{type(error).__name__}: {error}", secrecy))


def _mask(text: str, secrecy: Secrecy) -> str:
    return secrecy.hide_start(text, MAX_ERROR_CHARACTERS)


def _may_leak(text: str, secrecy: Secrecy) -> bool:
    """Return whether text contains a secret, or is too long to search."""
    return len(text) > MAX_ERROR_CHARACTERS or secrecy.is_in(text)


def _mask_part(argument: object, secrecy: Secrecy) -> object:
    return _mask(argument, secrecy) if isinstance(argument, str) else argument


def _cause_may_leak(error: BaseException, secrecy: Secrecy) -> bool:
    """Return whether an error's causes may contain a secret, which a traceback would show."""
    visited = {id(error)}  # a provider may raise an error from itself
    cause: BaseException | None = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in visited:
        if _may_leak(f"{cause!r} {cause}", secrecy):
            return True
        visited.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False
