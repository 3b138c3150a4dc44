"""The ``Certificate`` provider: orders a certificate once, stores it, and redelivers lost files."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from infra.providers.certificates import private_ca
from infra.providers.certificates.acme_client import (
    FAILED_DEPENDENCY,
    AcmeClient,
    LimitedError,
    format_instant,
)
from infra.providers.certificates.acme_order import AcmeOrder, identifiers_of
from infra.providers.certificates.checks import (
    REQUEST,
    Case,
    FileState,
    find_order_reason,
    findings,
)
from infra.providers.certificates.delivery import (
    Bundle,
    DescribeOwner,
    check_folder,
    compare_files,
    deliver,
    foreign_folder_error,
    withdraw,
)
from infra.providers.certificates.folder import CertificateFolder
from infra.providers.certificates.locked_objects import LockedObjects
from infra.providers.certificates.pem import (
    CertificateInfo,
    PrivateKey,
    algorithm_of,
    certificates_in,
    encode_certificates,
    is_signed_by,
    key_pem,
    new_key,
    public_digest,
    read_info,
    read_key,
)
from infra.providers.certificates.spec import (
    CA_FILE,
    CERTIFICATE_FILE,
    COMBINED_FILE,
    KEY_FILE,
    name_problem,
)
from infra.providers.certificates.store import (
    CertificateRecord,
    IssuerRecord,
    PendingOrder,
    Store,
    uid_of,
    version_of,
)
from reconciler.errors import (
    ConflictError,
    NotCalledError,
    NotDoneError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.named_objects import ExistingObject
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, namespace_of

MIN_ORDER_SECONDS = 30.0
"""Minimum timeout of a call that waits for an order, because CAs are slow."""

_encoder = msgspec.json.Encoder(order="deterministic")


class _StoredCertificate(NamedTuple):
    """A stored certificate: its record, and the content of its files.

    Its creation is unfinished if the record has no uid.
    """

    name: str
    record: CertificateRecord
    key: PrivateKey | None
    info: CertificateInfo | None
    bundle: Bundle
    case: Case
    folder: Path

    @property
    def needs_delivery(self) -> bool:
        """Whether a delivery would fix all problems."""
        problems = findings(self.case)
        return bool(problems) and find_order_reason(problems) is None

    def as_object(self) -> ExternalObject:
        record, info = self.record, self.info
        fields: Fields = {**record.fields, "problems": [str(each) for each in findings(self.case)]}
        outputs: Fields = {}
        if info is not None:
            fields["dnsNames"] = list(info.dns_names)
            fields["ipAddresses"] = list(info.ip_addresses)
            fields["keyAlgorithm"] = info.algorithm
            outputs = {
                "serial": info.serial,
                "notBefore": info.not_before.isoformat(),
                "notAfter": info.not_after.isoformat(),
                "fingerprint": info.fingerprint,
                "keyFile": str(self.folder / KEY_FILE),
                "certificateFile": str(self.folder / CERTIFICATE_FILE),
                "caFile": str(self.folder / CA_FILE),
                "combinedFile": str(self.folder / COMBINED_FILE),
                # Covers public values only: the certificate contains the public half of the key.
                "digest": hashlib.sha256(self.bundle.chain + self.bundle.ca).hexdigest(),
            }
        return ExternalObject(
            name=self.name,
            fields=fields,
            uid=record.uid,
            version=version_of(record, record.key_file, record.chain_file, record.ca_file),
            labels=record.labels,
            written_by=record.key,
            outputs=outputs,
        )


class CertificatesProvider(LockedObjects[_StoredCertificate, CertificateRecord]):
    """Orders, stores and delivers certificates below a root."""

    noun = "certificate"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # keys are created here, and never leave this machine
        folder = CertificateFolder(config, permit)
        super().__init__(folder, Store(folder.root, "certificates", CertificateRecord))

    def size_bytes(self, native: _StoredCertificate) -> int:
        """Return the size of the chain and of the CA's certificate, which are hashed."""
        return len(native.bundle.chain) + len(native.bundle.ca)

    async def create_object(self, action: Action) -> _StoredCertificate:
        """Obtain and deliver a certificate. A retry continues where the attempt stopped."""
        name = action.external_name
        if await self._folder.step(lambda: self._read(name)) is not None:
            raise ConflictError(f"certificate {name!r} already exists")
        await self._obtain(action, uid_of("certificate", action, None))
        return await self._deliver(name)

    async def complete_object(
        self, action: Action, existing: ExistingObject[_StoredCertificate]
    ) -> _StoredCertificate:
        """Deliver a certificate that an earlier attempt of the action obtained."""
        if not existing.native.needs_delivery:
            return existing.native
        return await self._deliver(action.external_name)

    async def update_object(
        self, action: Action, existing: ExistingObject[_StoredCertificate]
    ) -> _StoredCertificate:
        """Deliver lost files, and order a new certificate only if a check requires it."""
        name, step, native = action.external_name, self._folder.step, existing.native
        case = native.case._replace(desired=action.fields, is_due=action.purpose == "Renew")
        if find_order_reason(findings(case)) is not None:
            if native.needs_delivery:
                # It must not wait for a CA that limits rates or is down.
                await step(lambda: self._deliver_files(name))
            await self._obtain(action, native.record.uid)
        else:
            await step(lambda: self._write(action))
        return await self._deliver(name)

    async def delete_object(
        self, action: Action, existing: ExistingObject[_StoredCertificate]
    ) -> None:
        """Revoke the certificate if so declared, and remove its files, key and record."""
        if existing.native.record.fields.get("revokeOnDelete"):
            await self._folder.step(lambda: self._revoke(existing.native))
        await self._folder.step(lambda: self._remove(action.external_name))

    # --- an order

    async def _obtain(self, action: Action, uid: str) -> None:
        """Obtain a certificate, or continue an order in progress."""
        step = self._folder.step
        issuer, pending = await step(lambda: self._record_request(action))
        if "acme" not in issuer.fields:
            await step(lambda: self._sign(action, uid, issuer, pending))
            return
        chain = await self._chain(action, issuer, pending)
        try:
            await step(lambda: self._store_certificate(action, uid, pending, chain, None))
        except NotDoneError as error:
            raise _build_unknown_error(error) from None

    async def _chain(self, action: Action, issuer: IssuerRecord, pending: PendingOrder) -> bytes:
        """Order a certificate from an ACME CA, or continue the order. Return the chain."""
        name, step = action.external_name, self._folder.step
        key = await step(lambda: self._pending_key(name, pending))
        client = await step(lambda: self._folder.account(action.fields["issuer"], issuer))
        acme_order = AcmeOrder(
            client,
            step,
            self._folder.root,
            issuer.fields["acme"]["http01"],
            timeout_seconds=max(self._folder.timeout_seconds, MIN_ORDER_SECONDS),
        )
        try:
            return await acme_order.certificate(
                action.fields,
                key,
                pending.order,
                record_order=lambda url: self._record_order(name, url),
                register=lambda: self._register(action.fields["issuer"], client),
                record_limit=lambda limit: self._limit(name, action.fields["issuer"], limit),
            )
        except (LimitedError, NotDoneError) as error:
            failure = error.as_error() if isinstance(error, LimitedError) else error
            raise _build_unknown_error(failure) if acme_order.is_finalized else failure from None
        finally:
            client.close()

    async def _deliver(self, name: str) -> _StoredCertificate:
        try:
            await self._folder.step(lambda: self._deliver_files(name))
        except RefusedError as error:  # the certificate exists, and belongs to the action
            certificate = await self._folder.read_step(lambda: self._read(name))
            error.obstacle = None if certificate is None else certificate.as_object()
            raise
        except NotDoneError as error:
            raise _build_unknown_error(error) from None
        certificate = await self._folder.step(lambda: self._read(name))
        if certificate is None:
            raise UnknownResultError(f"certificate {name!r} was delivered, but no longer exists")
        return certificate

    # --- called in a thread

    def _load(self, name: str) -> _StoredCertificate | None:
        record = self._store.read(name)
        if record is None:
            return None
        fields = record.fields
        key_text = self._store.file(name, record.key_file) or b""
        chain_text = self._store.file(name, record.chain_file)
        stored_ca = self._store.file(name, record.ca_file) or b""
        key, chain = read_key(key_text), certificates_in(chain_text)
        info = read_info(chain[0]) if chain else None
        ca = self._read_ca_certificate(fields.get("issuer", ""))
        bundle = Bundle(key_text, chain_text or b"", ca or stored_ca)
        path = _delivery_path(name, fields)
        files: dict[str, FileState] = {}
        if record.uid and key is not None and info is not None:
            files = compare_files(self._folder.root, path, bundle)
        issued_by = certificates_in(ca)
        case = Case(
            key=None if key is None else public_digest(key),
            certificate=info,
            files=files,
            is_trusted=not (chain and issued_by) or is_signed_by(chain[0], issued_by[0]),
            has_current_ca=ca in (None, stored_ca),
            grants_duration=ca is not None,
            applied=fields,
            is_key_exposed=self._store.is_exposed(name, record.key_file),
        )
        return _StoredCertificate(
            name, record, key, info, bundle, case, self._folder.root.path / path
        )

    def _read(self, name: str) -> _StoredCertificate | None:
        """Read a certificate; None if its creation is unfinished."""
        certificate = self._load(name)
        return certificate if certificate is not None and certificate.record.uid else None

    def _read_ca_certificate(self, issuer: str) -> bytes | None:
        """Return the certificate of a private CA; None with ACME, whose chain contains it."""
        record = self._folder.issuers.read(issuer) if issuer else None
        if record is None or "ownCa" not in record.fields:
            return None
        return self._folder.issuers.file(issuer, record.certificate_file)

    def _record_request(self, action: Action) -> tuple[IssuerRecord, PendingOrder]:
        """Record the request and its key before any CA is contacted.

        Raises ``NotCalledError`` before the time that a CA has set.
        """
        name, fields = action.external_name, action.fields
        issuer = self._folder.issuers.read(fields["issuer"])
        if issuer is None or not issuer.uid:
            raise NotDoneError(
                f"issuer {fields['issuer']!r} does not exist yet; declare it with this "
                "ProviderConfig",
                status=FAILED_DEPENDENCY,
            )
        if "acme" in issuer.fields:
            identifiers_of(fields)  # raises for names that ACME cannot order
        self._check_folder(name, fields, action.namespace)
        request = _request_digest(fields)
        record = self._store.read(name) or CertificateRecord()
        pending = record.pending
        until = record.limited_until if record.limited_by == fields["issuer"] else None
        if until is not None and until > datetime.now(UTC):
            raise NotCalledError(
                f"{record.limited_why} (no orders before {format_instant(until)})",
                status=429,
                retry_after_seconds=(until - datetime.now(UTC)).total_seconds(),
            )
        # A request that equals the recorded one continues its order instead of placing another.
        if pending is not None and pending.request == request:
            key = read_key(self._store.file(name, pending.key_file))
            if key is not None:
                return issuer, pending
        self._folder.root.mark()
        key_file = self._key_for(name, record, fields)
        pending = PendingOrder(action.idempotency_key, key_file, request)
        self._store.write(name, msgspec.structs.replace(record, pending=pending))
        self._keep_only(name)
        return issuer, pending

    def _key_for(self, name: str, record: CertificateRecord, fields: Fields) -> str:
        """Return the key file to use: the existing one unless the key is rotated."""
        algorithm = fields["keyAlgorithm"]
        if fields["keyRotation"] == "Never" and record.key_file:
            key = read_key(self._store.file(name, record.key_file))
            if key is not None and algorithm_of(key.public_key()) == algorithm:
                return record.key_file
        return self._store.put(name, key_pem(new_key(algorithm)), "key")

    def _pending_key(self, name: str, pending: PendingOrder) -> PrivateKey:
        key = read_key(self._store.file(name, pending.key_file))
        if key is None:
            raise NotDoneError(f"the key of certificate {name!r} has since been deleted")
        return key

    def _sign(self, action: Action, uid: str, issuer: IssuerRecord, pending: PendingOrder) -> None:
        """Sign a certificate with a private CA, and store it."""
        name, issuers = action.fields["issuer"], self._folder.issuers
        ca = private_ca.load_ca(issuers, name, issuer)
        key = self._pending_key(action.external_name, pending)
        chain = encode_certificates([ca.sign(action.fields, key)])
        self._store_certificate(action, uid, pending, chain, encode_certificates([ca.certificate]))

    def _record_order(self, name: str, url: str) -> None:
        """Record an order before any other step. An empty URL removes it."""
        record = self._store.read(name)
        assert record is not None
        assert record.pending is not None
        pending = msgspec.structs.replace(record.pending, order=url)
        self._store.write(name, msgspec.structs.replace(record, pending=pending))

    def _register(self, issuer: str, client: AcmeClient) -> None:
        """Register the account of an issuer again, because its CA has lost it."""
        record = self._folder.issuers.read(issuer)
        assert record is not None
        account = client.register(record.fields["acme"].get("email"))
        self._folder.issuers.write(issuer, msgspec.structs.replace(record, account=account))

    def _limit(self, name: str, issuer: str, limit: LimitedError) -> None:
        """Record when the CA accepts orders again, for later actions."""
        record = self._store.read(name)
        assert record is not None
        limits = {"limited_until": limit.until, "limited_why": limit.reason}
        self._store.write(name, msgspec.structs.replace(record, limited_by=issuer, **limits))

    def _store_certificate(
        self, action: Action, uid: str, pending: PendingOrder, chain: bytes, ca: bytes | None
    ) -> None:
        """Store a new certificate and its key in one step."""
        name, certificates = action.external_name, certificates_in(chain)
        key = self._pending_key(name, pending)
        info = read_info(certificates[0]) if certificates else None
        if info is None or info.public_key != public_digest(key):
            raise RefusedError(
                f"the CA returned a certificate for a key other than the key of {name!r}",
                status=424,
            )
        names = (action.fields["dnsNames"], action.fields["ipAddresses"])
        if (list(info.dns_names), list(info.ip_addresses)) != names:
            raise RefusedError(
                f"the CA returned a certificate with names other than those of {name!r}",
                status=424,
            )
        record = self._store.read(name)
        assert record is not None
        updated = msgspec.structs.replace(
            _with_declaration(record, action),
            uid=uid,
            key_file=pending.key_file,
            chain_file=self._store.put(name, chain, "crt"),
            ca_file=self._store.put(name, ca or encode_certificates(certificates[-1:]), "crt"),
            pending=None,
            limited_until=None,
            limited_by="",
            limited_why="",
        )
        self._store.write(name, updated)

    def _write(self, action: Action) -> None:
        """Write the fields that can change without an order."""
        record = self._store.read(action.external_name)
        assert record is not None
        name = action.external_name
        self._check_folder(name, action.fields, action.namespace)
        ca = self._read_ca_certificate(action.fields["issuer"])
        updated = _with_declaration(record, action)
        if ca is not None:
            ca_file = self._store.put(action.external_name, ca, "crt")
            updated = msgspec.structs.replace(updated, ca_file=ca_file)
        self._store.write(action.external_name, updated)

    def _check_folder(self, name: str, fields: Fields, namespace: str) -> DescribeOwner:
        """Raise ``RefusedError`` unless the declared folder belongs to the certificate or to none.

        A certificate keeps its folders even while they are lost (ADR 0084).
        """
        path, describe_owner = _delivery_path(name, fields), self._describe_owner_to(namespace)
        if check_folder(self._folder.root, path, name, describe_owner):
            return describe_owner
        for other in self._store.names():
            record = None if other == name else self._store.read(other)
            for folder in () if record is None else record.folders:
                if f"{folder}/".startswith(f"{path}/") or f"{path}/".startswith(f"{folder}/"):
                    raise foreign_folder_error(folder, other, describe_owner)
        return describe_owner

    def _describe_owner_to(self, namespace: str) -> DescribeOwner:
        """Return a function that reveals the name of a certificate only to its namespace."""

        def describe(owner: str) -> str:
            record = self._store.read(owner) if name_problem(owner) is None else None
            if record is not None and _namespace_of(record) == namespace != "":
                return f"certificate {owner!r}"
            return "another certificate"

        return describe

    def _deliver_files(self, name: str) -> None:
        """Deliver to the declared folder, and remove the files from former folders."""
        certificate = self._load(name)
        if certificate is None or certificate.key is None or certificate.info is None:
            raise NotDoneError(
                f"the stored files of certificate {name!r} were lost during the call"
            )
        self._store.protect(name, certificate.record.key_file)
        path = _delivery_path(name, certificate.record.fields)
        describe_owner = self._check_folder(
            name, certificate.record.fields, _namespace_of(certificate.record)
        )
        if path not in certificate.record.folders:
            folders = (*certificate.record.folders, path)
            self._store.write(name, msgspec.structs.replace(certificate.record, folders=folders))
        deliver(self._folder.root, path, name, certificate.bundle, describe_owner)
        for each in certificate.record.folders:
            if each != path:
                withdraw(self._folder.root, each, name)
        record = self._store.read(name)
        assert record is not None
        if record.folders != (path,):
            self._store.write(name, msgspec.structs.replace(record, folders=(path,)))
        self._keep_only(name)

    def _keep_only(self, name: str) -> None:
        record = self._store.read(name)
        assert record is not None
        pending = () if record.pending is None else (record.pending.key_file,)
        self._store.keep_only(name, {record.key_file, record.chain_file, record.ca_file, *pending})

    def _revoke(self, certificate: _StoredCertificate) -> None:
        """Revoke a certificate unless it has expired."""
        if certificate.info is None or certificate.info.not_after <= datetime.now(UTC):
            return
        name = certificate.record.fields["issuer"]
        issuer = self._folder.issuers.read(name)
        if issuer is None or not issuer.uid:
            raise NotDoneError(
                f"issuer {name!r}, which must revoke the certificate, does not exist; declare "
                "it, or declare the certificate with revokeOnDelete: false",
                status=FAILED_DEPENDENCY,
            )
        if "acme" not in issuer.fields:
            lock = self._folder.issuers.lock(name)
            try:
                private_ca.revoke(self._folder.issuers, name, certificate.info.serial)
            finally:
                os.close(lock)
            return
        client = self._folder.account(name, issuer)
        try:
            client.revoke(certificates_in(certificate.bundle.chain)[0])
        except LimitedError as limit:
            raise limit.as_error() from None
        finally:
            client.close()

    def _remove(self, name: str) -> None:
        record = self._store.read(name)
        for each in () if record is None else record.folders:
            withdraw(self._folder.root, each, name)
        super()._remove(name)


def _build_unknown_error(error: NotDoneError) -> UnknownResultError:
    """Return the error for a failure after an effect, so that the same action continues."""
    return UnknownResultError(
        error.message,
        status=error.status or FAILED_DEPENDENCY,
        retry_after_seconds=error.retry_after_seconds,
    )


def _with_declaration(record: CertificateRecord, action: Action) -> CertificateRecord:
    fields = {name: value for name, value in action.fields.items() if name != "problems"}
    return msgspec.structs.replace(
        record, key=action.idempotency_key, labels=action.labels, fields=fields
    )


def _namespace_of(record: CertificateRecord) -> str:
    return namespace_of(record.labels.get(OWNER_LABEL, ""))


def _delivery_path(name: str, fields: Fields) -> str:
    return fields.get("folder") or name


def _request_digest(fields: Fields) -> str:
    request = {name: fields.get(name) for name in REQUEST}
    return hashlib.sha256(_encoder.encode(request)).hexdigest()
