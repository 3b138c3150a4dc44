"""The ``Issuer`` provider: private CAs, and accounts with ACME CAs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography import x509

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from infra.providers.certificates.acme_client import LimitedError
from infra.providers.certificates.folder import CertificateFolder
from infra.providers.certificates.locked_objects import LockedObjects
from infra.providers.certificates.pem import (
    PrivateKey,
    algorithm_of,
    certificates_in,
    encode_certificates,
    key_pem,
    new_key,
    public_digest,
    read_info,
    read_key,
)
from infra.providers.certificates.private_ca import CRL_FILE, PrivateCa, self_sign
from infra.providers.certificates.spec import DEFAULT_ALGORITHM, STORE
from infra.providers.certificates.store import IssuerRecord, uid_of, version_of
from reconciler.errors import ConflictError, NotDoneError, RefusedError, UnknownResultError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.named_objects import ExistingObject
from reconciler.provider.secrets import Secrets

_OBSERVED_FIELDS = ("problems",)


class _Issuer(NamedTuple):
    """A record, and the files that it names. A missing or unreadable file is None or empty."""

    name: str
    record: IssuerRecord
    key: PrivateKey | None
    chain: Sequence[x509.Certificate]
    revocations: Path
    is_key_exposed: bool

    def as_object(self) -> ExternalObject:
        record, key = self.record, self.key
        outputs: Fields = {"name": self.name}
        problems: list[str] = []
        fields = {**record.fields}
        if key is None:
            problems.append("KeyMissing")
        if self.is_key_exposed:
            problems.append("KeyExposed")
        if (own_ca := fields.get("ownCa")) is not None:
            if not self.chain:
                problems.append("CertificateMissing")
            else:
                info = read_info(self.chain[0])
                if key is not None and info.public_key != public_digest(key):
                    problems.append("KeyDiffers")
                fields["ownCa"] = {
                    **own_ca,
                    "keyAlgorithm": algorithm_of(self.chain[0].public_key()),
                }
                outputs |= {
                    "certificate": encode_certificates(self.chain).decode(),
                    "fingerprint": info.fingerprint,
                    "notBefore": info.not_before.isoformat(),
                    "notAfter": info.not_after.isoformat(),
                }
            if record.revoked:
                outputs["revoked"] = str(self.revocations)
        else:
            outputs["account"] = record.account
        return ExternalObject(
            name=self.name,
            fields={**fields, "problems": problems},
            uid=record.uid,
            version=version_of(record, record.key_file, record.certificate_file),
            labels=record.labels,
            written_by=record.key,
            outputs=outputs,
        )


class IssuersProvider(LockedObjects[_Issuer, IssuerRecord]):
    """Creates private CAs and ACME accounts below a root."""

    noun = "issuer"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # keys are created here, and never leave this machine
        folder = CertificateFolder(config, permit)
        super().__init__(folder, folder.issuers)

    async def create_object(self, action: Action) -> _Issuer:
        """Create a key, then a CA certificate or an account with it."""
        name, step = action.external_name, self._folder.step
        if await step(lambda: self._read(name)) is not None:
            raise ConflictError(f"issuer {name!r} already exists")
        await step(lambda: self._create_key(action))
        return await step(lambda: self._finish(action))

    async def update_object(self, action: Action, existing: ExistingObject[_Issuer]) -> _Issuer:
        """Write the fields that can change. A renewed CA keeps its key."""
        return await self._folder.step(lambda: self._change(action, existing.object))

    async def delete_object(self, action: Action, existing: ExistingObject[_Issuer]) -> None:
        """Deactivate the account, and remove the key and the certificate."""
        del existing
        name = action.external_name
        await self._folder.step(lambda: self._deactivate(name))
        await self._folder.step(lambda: self._remove(name))

    # --- called in a thread

    def _read(self, name: str) -> _Issuer | None:
        record = self._store.read(name)
        if record is None or not record.uid:
            return None  # unfinished: the creation continues
        return _Issuer(
            name,
            record,
            key=read_key(self._store.file(name, record.key_file)),
            chain=certificates_in(self._store.file(name, record.certificate_file)),
            revocations=self._folder.root.path / STORE / "issuers" / name / CRL_FILE,
            is_key_exposed=self._store.is_exposed(name, record.key_file),
        )

    def _create_key(self, action: Action) -> None:
        """Create the key. The record names the action, but is not an issuer yet."""
        name = action.external_name
        record = self._store.read(name)
        if record is not None and record.key == action.idempotency_key and record.key_file:
            return
        self._folder.root.mark()
        own_ca: Fields | None = action.fields.get("ownCa")
        algorithm = DEFAULT_ALGORITHM if own_ca is None else own_ca["keyAlgorithm"]
        key_file = self._store.put(name, key_pem(new_key(algorithm)), "key")
        self._store.write(name, IssuerRecord(key=action.idempotency_key, key_file=key_file))
        self._store.keep_only(name, {key_file})

    def _finish(self, action: Action) -> _Issuer:
        record = self._store.read(action.external_name)
        assert record is not None
        return self._write(action, record, uid_of("issuer", action, None))

    def _change(self, action: Action, existing: ExternalObject) -> _Issuer:
        name, record = action.external_name, self._store.read(action.external_name)
        assert record is not None
        if existing.fields["type"] != action.fields["type"]:
            raise RefusedError(
                "a private CA (ownCa) cannot become an ACME account; declare an issuer with "
                "another name"
            )
        problems = set(existing.fields["problems"])
        if problems & {"KeyMissing", "KeyDiffers"} and "CertificateMissing" not in problems:
            raise RefusedError(
                f"issuer {name!r}: its key is missing; restore it from a backup, or withdraw "
                "the issuer and declare it again",
            )
        self._store.protect(name, record.key_file)
        return self._write(action, record, existing.uid or "")

    def _write(self, action: Action, record: IssuerRecord, uid: str) -> _Issuer:
        """Write the fields of an action with the existing key, and return the issuer."""
        name = action.external_name
        updated = msgspec.structs.replace(
            record,
            uid=uid,
            key=action.idempotency_key,
            labels=action.labels,
            fields={
                key: each for key, each in action.fields.items() if key not in _OBSERVED_FIELDS
            },
        )
        if (own_ca := action.fields.get("ownCa")) is not None:
            key = read_key(self._store.file(name, record.key_file))
            if key is None:
                raise NotDoneError(f"the key of issuer {name!r} has since been deleted")
            updated = self._sign_if_changed(action, updated, own_ca, record, key)
        else:
            account = self._register_account(name, updated, record)
            updated = msgspec.structs.replace(updated, account=account)
        self._store.write(name, updated)
        self._store.keep_only(name, {updated.key_file, updated.certificate_file, CRL_FILE})
        issuer = self._read(name)
        if issuer is None:
            raise UnknownResultError(f"issuer {name!r} was written, but no longer exists")
        return issuer

    def _sign_if_changed(
        self,
        action: Action,
        updated: IssuerRecord,
        own_ca: Fields,
        previous: IssuerRecord,
        key: PrivateKey,
    ) -> IssuerRecord:
        """Sign the CA's certificate again if the declaration requires a new one."""
        name = action.external_name
        chain = certificates_in(self._store.file(name, previous.certificate_file))
        applied: Fields = previous.fields.get("ownCa") or {}
        is_same = all(applied.get(each) == own_ca.get(each) for each in ("commonName", "duration"))
        if chain and is_same and action.purpose != "Renew":
            return updated
        certificate = self_sign(own_ca, key)
        if updated.revoked:
            revocations = PrivateCa(key, certificate).revocation_list(updated.revoked)
            self._store.put_as(name, CRL_FILE, revocations)
        file_name = self._store.put(name, encode_certificates([certificate]), "crt")
        return msgspec.structs.replace(updated, certificate_file=file_name)

    def _register_account(self, name: str, record: IssuerRecord, previous: IssuerRecord) -> str:
        """Create the account, or find it by its key. Return its URL."""
        client = self._folder.account(name, record)
        email, applied = record.fields["acme"].get("email"), previous.fields.get("acme")
        try:
            account = client.register(email)
            if applied is not None and applied.get("email") != email:
                client.set_email(account, email)
        except LimitedError as limit:
            raise limit.as_error() from None
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
        except LimitedError as limit:
            raise limit.as_error() from None
        finally:
            client.close()
