"""A provider whose errors contain no secrets, and whose responses have bounded memory.

The returned objects may contain secrets. ``roles.object_secrets`` hides them before they are
reported, because that requires the strings that are already in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from typing import Final

from events.external import ExternalObject
from events.log import Action
from events.provider_config import Scope
from events.reference import resolved_secrets_in
from reconciler.answer_budget import MAX_CALLS_BYTES, MAX_LISTING_BYTES, AnswerBudget
from reconciler.errors import ConfigurationError, NotDoneError, ProviderError
from reconciler.provider import Effect, Provider, WatchingProvider
from reconciler.provider.secrets import Secrets
from reconciler.secrecy import Secrecy

MAX_PAGES: Final = 20_000
"""Limit of pages per listing, for listings without an end: 250,000 objects at 13 per page."""

MAX_ERROR_CHARACTERS: Final = 16_384
"""Limit of an error's text, which is cut before the search for secrets.

An API may repeat megabytes in its response, and searching one MiB blocks this process for a second.
"""

_SUPPRESSED = (
    "the API's error message is suppressed: it may contain an earlier value of a secret, which "
    "this process never read and cannot mask"
)


class SecretiveProvider:
    """Implements ``reconciler.provider.Provider`` with another provider, and counts its calls."""

    def __init__(self, provider: Provider, secrets: Secrets) -> None:
        self._provider = provider
        self._secrets = secrets
        self._secrecy = secrets.secrecy
        self._calls = 0
        self._budget = AnswerBudget(
            "the responses to concurrent calls of this API", MAX_CALLS_BYTES
        )
        self._idle = asyncio.Event()
        self._idle.set()

    async def until_idle(self) -> None:
        """Wait until no call is in progress."""
        await self._idle.wait()

    @contextmanager
    def _calling(self, action: Action | None = None) -> Generator[None]:
        self._calls += 1
        self._idle.clear()
        try:
            with without_secret(self._secrecy), self._budget.share() as share, share.in_use():
                yield
        except ProviderError as error:
            if action is not None and any(
                self._secrets.has_other_value(each, action.namespace)
                for each in resolved_secrets_in(action.fields)
            ):
                # The API may return its response to an earlier call, with a value that this process
                # never had.
                error.message = _SUPPRESSED
                error.args = (_SUPPRESSED,)
                error.__cause__ = error.__context__ = None
            raise
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def create(self, action: Action) -> Effect:
        """Create an object."""
        with self._calling(action):
            return await self._provider.create(action)

    async def update(self, action: Action) -> Effect:
        """Update an object."""
        with self._calling(action):
            return await self._provider.update(action)

    async def delete(self, action: Action) -> Effect:
        """Delete an object."""
        with self._calling(action):
            return await self._provider.delete(action)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read an object."""
        with self._calling():
            return await self._provider.read(external_name, uid)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the objects of a scope."""
        budget = AnswerBudget("the responses of this listing", MAX_LISTING_BYTES)
        pages = aiter(self._provider.pages(scope, page_size=page_size))
        with without_secret(self._secrecy), budget.share() as share:
            for _ in range(MAX_PAGES):
                with share.in_use():  # not while the caller processes the page
                    page = await anext(pages, None)
                if page is None:
                    return
                yield page
            raise NotDoneError(f"the listing has more than {MAX_PAGES} pages")

    async def close(self) -> None:
        """Close the connections."""
        with without_secret(self._secrecy):
            await self._provider.close()


class SecretiveWatchingProvider(SecretiveProvider):
    """Implements ``reconciler.provider.WatchingProvider`` with another provider."""

    def __init__(self, provider: WatchingProvider, secrets: Secrets) -> None:
        super().__init__(provider, secrets)
        self._watching = provider

    async def changes(self, after: str | None) -> str:
        """Wait for a change, and return its mark."""
        with without_secret(self._secrecy), self._budget.share() as share, share.in_use():
            return await self._watching.changes(after)


def secretive(provider: Provider, secrets: Secrets) -> SecretiveProvider:
    """Return an equivalent provider whose errors contain no secrets."""
    if isinstance(provider, WatchingProvider):
        return SecretiveWatchingProvider(provider, secrets)
    return SecretiveProvider(provider, secrets)


@contextmanager
def without_secret(secrecy: Secrecy) -> Generator[None]:
    """Remove secrets from errors. An error that cannot be cleaned is replaced."""
    try:
        yield
    except ProviderError as error:
        error.message = _cleaned(error.message, secrecy)
        error.args = tuple(_hidden(each, secrecy) for each in error.args)
        if _is_in_cause(error, secrecy):
            error.__cause__ = error.__context__ = None
        raise
    except ConfigurationError as error:
        if not _is_in(str(error), secrecy) and not _is_in_cause(error, secrecy):
            raise
        raise ConfigurationError(_cleaned(str(error), secrecy)) from None
    except Exception as error:
        if not _is_in(repr(error), secrecy) and not _is_in_cause(error, secrecy):
            raise
        raise ProviderError(_cleaned(f"{type(error).__name__}: {error}", secrecy)) from None


def _cleaned(text: str, secrecy: Secrecy) -> str:
    return secrecy.hide_start(text, MAX_ERROR_CHARACTERS)


def _is_in(text: str, secrecy: Secrecy) -> bool:
    """Return whether a text contains a secret, or is too long to search."""
    return len(text) > MAX_ERROR_CHARACTERS or secrecy.is_in(text)


def _hidden(part: object, secrecy: Secrecy) -> object:
    return _cleaned(part, secrecy) if isinstance(part, str) else part


def _is_in_cause(error: BaseException, secrecy: Secrecy) -> bool:
    """Return whether an error's causes may contain a secret, which a traceback would show."""
    looked_at = {id(error)}  # a provider may raise an error from itself
    seen: BaseException | None = error.__cause__ or error.__context__
    while seen is not None and id(seen) not in looked_at:
        if _is_in(f"{seen!r} {seen}", secrecy):
            return True
        looked_at.add(id(seen))
        seen = seen.__cause__ or seen.__context__
    return False
