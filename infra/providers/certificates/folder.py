"""Run blocking steps of both certificate kinds in threads, and classify their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric import ec

from events.provider_config import ProviderConfigSpec
from infra.providers.certificates.acme_client import (
    FAILED_DEPENDENCY,
    AcmeClient,
    NoAccountError,
    NoOrderError,
)
from infra.providers.certificates.pem import read_key
from infra.providers.certificates.store import (
    IssuerRecord,
    Store,
    root_of,
)
from infra.providers.file_errors import to_provider_error
from infra.providers.file_root import FileRoot
from infra.providers.file_threads import FileThreads
from infra.providers.host_guard import HostGuard
from reconciler.errors import NotDoneError
from reconciler.provider.call_permit import CallPermit

_T = TypeVar("_T")


class CertificateFolder:
    """The root of a ``ProviderConfig``, in which steps are executed."""

    def __init__(self, config: ProviderConfigSpec, permit: CallPermit) -> None:
        self._permit = permit
        self.root: FileRoot = root_of(config.endpoint)
        self.issuers = Store(self.root, "issuers", IssuerRecord)
        self.timeout_seconds = config.limits.request_timeout_seconds
        self._allow = config.allow
        # A thread for each concurrent action, because a hanging CA must not delay other actions or
        # reads.
        self._actions = ThreadPoolExecutor(
            config.limits.concurrency, thread_name_prefix="certificates"
        )
        self._reads = FileThreads(self.root.path, self.timeout_seconds, "certificate-reads")

    async def step(self, function: Callable[[], _T], /) -> _T:
        """Execute a blocking step of an action, which has its own timeouts.

        A CA may hang. Reads must not wait for it, so they use ``read_step``.
        """
        await self._permit.before_request()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._actions, function)
        except OSError as error:
            raise to_provider_error(error, writes=True) from None
        except (NoAccountError, NoOrderError) as error:
            raise NotDoneError(str(error), status=FAILED_DEPENDENCY) from None

    async def read_step(self, function: Callable[[], _T], /) -> _T:
        """Execute a step that only reads files. Raises ``NotDoneError`` if a disk hangs."""
        await self._permit.before_request()
        try:
            return await self._reads.run(function)
        except (NoAccountError, NoOrderError) as error:
            raise NotDoneError(str(error), status=FAILED_DEPENDENCY) from None

    def close(self) -> None:
        """Stop the threads."""
        self._actions.shutdown(wait=False)
        self._reads.close()

    # --- called in a thread

    def account(self, name: str, record: IssuerRecord) -> AcmeClient:
        """Open an issuer's account. Raises ``NotDoneError`` if its key is lost."""
        acme = record.fields["acme"]
        key = read_key(self.issuers.file(name, record.key_file))
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise NotDoneError(
                f"issuer {name!r}: the key of its account is missing; restore it from a backup",
                status=FAILED_DEPENDENCY,
            )
        ca_file = acme.get("caFile")
        if ca_file is not None and not (self.root.path / ca_file).is_file():
            raise NotDoneError(
                f"acme.caFile: {self.root.path / ca_file} does not exist", status=FAILED_DEPENDENCY
            )
        client = AcmeClient(
            acme["directory"],
            key,
            ca_file=None if ca_file is None else self.root.path / ca_file,
            timeout_seconds=self.timeout_seconds,
            guard=HostGuard(self._allow),
        )
        if record.account:
            client.use_account(record.account)
        return client
