"""The provider of ``Issuer``: authorities of our own, and accounts with others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.certificates.acme_client import (
    LimitedError,
)
from infra.providers.certificates.folder import CertificateFolder
from infra.providers.certificates.own_authority import CRL_FILE, OwnAuthority, certify
from infra.providers.certificates.pem import (
    PrivateKey,
    algorithm_of,
    certificates_in,
    facts_of,
    key_pem,
    new_key,
    public_digest,
    read_key,
    text_of,
)
from infra.providers.certificates.spec import DEFAULT_ALGORITHM, STORE
from infra.providers.certificates.store import (
    IssuerRecord,
    checked_name,
    uid_of,
    version_of,
)
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    RefusedError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.named_objects import check_uid
from reconciler.provider.secrets import Secrets

_SHOWN_ONLY = ("problems",)


class IssuersProvider:
    """Makes authorities and accounts in a root."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # keys are made here, and never leave
        self._folder = CertificateFolder(config, permit)
        self._store = self._folder.issuers

    async def create(self, action: Action) -> Effect:
        """Make a key, and with it an authority's certificate or an account."""
        name = checked_name(action.external_name)
        async with self._folder.locked(self._store, name):
            found = await self._folder.step(lambda: self._shown(name))
            if found is not None:
                if found.written_by == action.idempotency_key:
                    return Effect(found, replayed=True)
                raise ConflictError(f"issuer {name!r} already exists", obstacle=found)
            await self._folder.step(lambda: self._begin(action))
            with self._asking(action):
                await self._folder.step(lambda: self._finish(action))
            return Effect(await self._folder.step(lambda: self._shown(name)))

    async def update(self, action: Action) -> Effect:
        """Write what can change; an authority that is renewed keeps its key."""
        name = checked_name(action.external_name)
        if await self._folder.step(lambda: self._shown(name)) is None:
            raise NotFoundError(f"issuer {name!r} does not exist")
        async with self._folder.locked(self._store, name):
            found = await self._folder.step(lambda: self._shown(name))
            if found is None:
                raise NotFoundError(f"issuer {name!r} was deleted")
            if found.written_by == action.idempotency_key:
                return Effect(found, replayed=True)
            check_uid(found, action)
            if action.version not in (None, found.version):
                raise ConflictError(
                    f"issuer {name!r} has changed since it was read", obstacle=found
                )
            with self._asking(action):
                await self._folder.step(lambda: self._change(action, found))
            return Effect(await self._folder.step(lambda: self._shown(name)))

    async def delete(self, action: Action) -> Effect:
        """End an account, and remove key and certificate."""
        name = checked_name(action.external_name)
        found = await self._folder.step(lambda: self._shown(name))
        if found is None:
            return Effect(None, absent=True)
        async with self._folder.locked(self._store, name):
            found = await self._folder.step(lambda: self._shown(name))
            if found is None:
                return Effect(None, absent=True)
            check_uid(found, action)
            with self._asking(action, found):
                await self._folder.step(lambda: self._deactivate(name))
            await self._folder.step(lambda: self._store.remove(name))
            return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one issuer; no authority is asked."""
        del uid  # names are unique
        return await self._folder.look(lambda: self._shown(checked_name(external_name)))

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the issuers of a scope."""
        names = await self._folder.look(self._store.names)
        wanted = [name for name in names if name.startswith(scope.prefix or "")]
        for start in range(0, len(wanted), page_size):
            page = wanted[start : start + page_size]
            seen = await self._folder.look(lambda page=page: [self._shown(name) for name in page])
            yield [each for each in seen if each and scope.has(each.name, each.labels)]

    async def close(self) -> None:
        """Let the threads end."""
        self._folder.close()

    def _asking(
        self, action: Action, found: ExternalObject | None = None
    ) -> AbstractContextManager[None]:
        """Count an action on an account with another authority; no action on our own waits."""
        fields = action.fields if found is None else found.fields
        return self._folder.asking(action) if "acme" in fields else nullcontext()

    # --- in a thread

    def _shown(self, name: str) -> ExternalObject | None:
        record = self._store.read(name)
        if record is None or not record.uid:
            return None  # half made: the creation goes on
        key = read_key(self._store.file(name, record.key_file))
        outputs: Fields = {"name": name}
        problems: list[str] = []
        fields = {**record.fields}
        if key is None:
            problems.append("KeyMissing")
        if (own := fields.get("ownCa")) is not None:
            chain = certificates_in(self._store.file(name, record.certificate_file))
            if not chain:
                problems.append("CertificateMissing")
            else:
                facts = facts_of(chain[0])
                if key is not None and facts.public_key != public_digest(key):
                    problems.append("KeyDiffers")
                fields["ownCa"] = {**own, "keyAlgorithm": algorithm_of(chain[0].public_key())}
                outputs |= {
                    "certificate": text_of(chain).decode(),
                    "fingerprint": facts.fingerprint,
                    "notBefore": facts.not_before.isoformat(),
                    "notAfter": facts.not_after.isoformat(),
                }
            if record.revoked:
                path = self._folder.root.path / STORE / "issuers" / name / CRL_FILE
                outputs["revoked"] = str(path)
        else:
            outputs["account"] = record.account
        return ExternalObject(
            name=name,
            fields={**fields, "problems": problems},
            uid=record.uid,
            version=version_of(record, record.key_file, record.certificate_file),
            labels=record.labels,
            written_by=record.key,
            outputs=outputs,
        )

    def _begin(self, action: Action) -> None:
        """Make the key; the record names the action, and is no issuer yet."""
        name = action.external_name
        record = self._store.read(name)
        if record is not None and record.key == action.idempotency_key and record.key_file:
            return
        self._folder.root.mark()
        own: Fields | None = action.fields.get("ownCa")
        algorithm = DEFAULT_ALGORITHM if own is None else own["keyAlgorithm"]
        key_file = self._store.put(name, key_pem(new_key(algorithm)), "key")
        self._store.write(name, IssuerRecord(key=action.idempotency_key, key_file=key_file))
        self._store.keep_only(name, {key_file})

    def _finish(self, action: Action) -> None:
        record = self._store.read(action.external_name)
        assert record is not None
        self._write(action, record, uid_of("issuer", action, None))

    def _change(self, action: Action, found: ExternalObject) -> None:
        name, record = action.external_name, self._store.read(action.external_name)
        assert record is not None
        if found.fields["type"] != action.fields["type"]:
            raise RefusedError(
                "a private CA (ownCa) cannot become an ACME account; declare an issuer with "
                "another name"
            )
        if found.fields["problems"] and "CertificateMissing" not in found.fields["problems"]:
            raise RefusedError(
                f"issuer {name!r}: its key is missing; restore it from a backup, or withdraw "
                "the issuer and declare it again",
            )
        self._write(action, record, found.uid or "")

    def _write(self, action: Action, record: IssuerRecord, uid: str) -> None:
        """Write what an action wants, with the key that is there."""
        name = action.external_name
        written = msgspec.structs.replace(
            record,
            uid=uid,
            key=action.idempotency_key,
            labels=action.labels,
            fields={key: each for key, each in action.fields.items() if key not in _SHOWN_ONLY},
        )
        if (own := action.fields.get("ownCa")) is not None:
            key = read_key(self._store.file(name, record.key_file))
            if key is None:
                raise NotDoneError(f"the key of issuer {name!r} was deleted in the meantime")
            written = self._certified(action, written, own, record, key)
        else:
            account = self._registered(name, written, record)
            written = msgspec.structs.replace(written, account=account)
        self._store.write(name, written)
        self._store.keep_only(name, {written.key_file, written.certificate_file, CRL_FILE})

    def _certified(
        self,
        action: Action,
        written: IssuerRecord,
        own: Fields,
        before: IssuerRecord,
        key: PrivateKey,
    ) -> IssuerRecord:
        """Sign the authority's certificate anew if another one is wanted."""
        name = action.external_name
        chain = certificates_in(self._store.file(name, before.certificate_file))
        applied: Fields = before.fields.get("ownCa") or {}
        is_same = all(applied.get(each) == own.get(each) for each in ("commonName", "duration"))
        if chain and is_same and action.purpose != "Renew":
            return written
        certificate = certify(own, key)
        if written.revoked:
            revocations = OwnAuthority(key, certificate).revocations(written.revoked)
            self._store.put_as(name, CRL_FILE, revocations)
        file_name = self._store.put(name, text_of([certificate]), "crt")
        return msgspec.structs.replace(written, certificate_file=file_name)

    def _registered(self, name: str, record: IssuerRecord, before: IssuerRecord) -> str:
        """Make the account, or find it by its key; return its URL."""
        client = self._folder.account(name, record)
        email, applied = record.fields["acme"].get("email"), before.fields.get("acme")
        try:
            account = client.register(email)
            if applied is not None and applied.get("email") != email:
                client.write_to(account, email)
        except LimitedError as limited:
            raise limited.as_error() from None
        finally:
            client.close()
        return account

    def _deactivate(self, name: str) -> None:
        record = self._store.read(name)
        if record is None or not record.account:
            return
        client = self._folder.account(name, record)
        try:
            client.deactivate(record.account)
        except LimitedError as limited:
            raise limited.as_error() from None
        finally:
            client.close()
