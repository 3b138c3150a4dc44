"""The provider contract as test cases: subclass them, and pytest runs them against your API.

::

    class TestBucket(ProviderContract, HttpFaultContract):
        kind = BUCKET
        fields: ClassVar = {"size": 1}
        other_fields: ClassVar = {"size": 2}
        refused_fields: ClassVar = {"region": "nowhere"}

        @pytest.fixture
        def endpoint(self) -> str:
            return "http://127.0.0.1:8080"

A case is skipped, with the reason, if it needs something that the kind's ``Capabilities`` do not
declare. `reconciler.provider.http_faults` has cases for faults between the client and an HTTP API.
Both need the ``contract`` extra: ``pip install '.[contract]'`` in a clone. No module of the product
imports them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Generator, Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Literal, Protocol
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from events.allow import NOTHING, Allow
from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields
from events.provider_config import Limits, ProviderConfigSpec, Scope
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CALL_GATE, CALL_RECORD, CallPermit, CallRecord
from reconciler.provider.data_check import DATA_CHECK, DataCheck
from reconciler.provider.kind import Kind
from reconciler.provider.named_objects import NamedObjects
from reconciler.provider.secrets import Secrets

Capability = Literal["idempotency_keys", "deterministic_names", "labels", "conditional_writes"]

LABELS = {"reconciler/owner": "test", "team": "a+b & c=d/e"}
BAD_NAMES = ("..", "a/b", "", "a\n")
MAX_REQUESTS = 50
"""More requests than any provider call makes."""


_AS_OBJECT: Final = (
    "create, update, read and pages must show the same object; convert it with one function, such "
    "as the as_object of NamedObjects"
)
_NORMALIZE: Final = (
    "the object must have the declared fields; convert both spellings in Kind.normalize, or set "
    "Kind.comparable"
)
_MARK: Final = (
    "store action.idempotency_key with the object, and show it as ExternalObject.written_by; "
    "NamedObjects then recognizes an earlier attempt"
)
_UID: Final = (
    "ExternalObject.uid must differ between an object and its replacement, and stay the same in an "
    "update; call check_uid before a write, or use NamedObjects"
)
_VERSION: Final = (
    "ExternalObject.version must change with each write, and a write for another version must be "
    "refused; NamedObjects compares it"
)
_LABELS: Final = "write action.labels, and show exactly those as ExternalObject.labels"
_REPLAYED: Final = "return Effect(..., replayed=True) for the stored response to a repeated call"
_OBSTACLE: Final = (
    "raise ConflictError with the existing object as the obstacle; NamedObjects or with_obstacle "
    "does this"
)
_MISSING: Final = "update raises NotFoundError if the object does not exist; NamedObjects does this"
_NAME: Final = (
    "raise RefusedError for a name that Kind.name_problem refuses, before any request; "
    "NamedObjects does this"
)
_NEVER_OVERWRITE: Final = "create must not change an object that another action created"
_DATA: Final = (
    "update and delete must call check_data with the object that they read, before the first "
    "request that writes; NamedObjects does this"
)
_ABSENT: Final = (
    "delete returns Effect(None, absent=True) if the object does not exist, and absent=False if it "
    "deleted one; NamedObjects does this"
)
_LISTING: Final = "pages must list all objects, each once; NamedObjects or all_pages does this"
_SCOPE: Final = "pages must filter with scope.has; NamedObjects or all_pages does this"
_PERMIT: Final = "await permit.before_request() of the CallPermit before each request"
_RESUME: Final = (
    "a repeated action must continue where its earlier attempt stopped: find its objects by the "
    "key of the action"
)
_NOT_DONE: Final = (
    "NotDoneError and RefusedError report that nothing was changed; raise UnknownResultError, or "
    "call permit.record_write() after each request that writes"
)


def expect(actual: object, expected: object, remedy: str, context: str = "") -> None:
    """Fail with both values and the remedy for the author of the provider."""
    if actual != expected:
        context = f" ({context})" if context else ""
        pytest.fail(f"{remedy}{context}\n  expected: {expected!r}\n  actual:   {actual!r}")


class RaisedError:
    """The error that a call raised."""

    def __init__(self) -> None:
        self.value: ProviderError = ProviderError("no error")


@contextmanager
def raises(*errors: type[ProviderError], remedy: str) -> Generator[RaisedError]:
    """Fail with the remedy unless a call raises one of these classes."""
    raised = RaisedError()
    expected = " or ".join(each.__name__ for each in errors)
    try:
        yield raised
    except errors as error:
        raised.value = error
    except ProviderError as error:
        pytest.fail(
            f"{remedy}\n  expected: {expected}\n  actual:   {type(error).__name__}: {error}"
        )
    else:
        pytest.fail(f"{remedy}\n  expected: {expected}\n  actual:   no error")


def require_object(observed: ExternalObject | None) -> ExternalObject:
    """Return an object that must exist."""
    if observed is None:
        pytest.fail(f"the object must exist; {_AS_OBJECT}")
    return observed


class Connect(Protocol):
    """Builds a provider that is closed at the end of the test."""

    def __call__(
        self, endpoint: str, *, timeout_seconds: float = 10, secret: str | None = None
    ) -> Provider:
        """Build a provider for an endpoint."""
        ...


class ContractCase:
    """Inputs to each case. Subclasses set the kind, and the endpoint of its API.

    ``fields`` and ``other_fields`` are two valid specs that differ. ``refused_fields`` replace some
    of ``fields``, so that the API refuses to create the object before it creates anything. If no
    fields can, override ``refused_create``, or state the reason in ``never_refused``. ``allow``
    lists the parts of the host that the kind may use.
    """

    kind: Kind
    fields: ClassVar[Fields]
    other_fields: ClassVar[Fields]
    refused_fields: ClassVar[Fields] = {}
    never_refused: ClassVar[str] = ""
    allow: ClassVar[Allow] = NOTHING

    @pytest.fixture
    def endpoint(self) -> str:
        """Endpoint of the API, for ``ProviderConfig.spec.endpoint``."""
        raise NotImplementedError("override the `endpoint` fixture")

    @pytest.fixture
    def name(self) -> str:
        """A name that no other case uses. No other name begins with it."""
        return f"t{uuid4().hex[:12]}"

    @pytest_asyncio.fixture
    async def connect(self) -> AsyncIterator[Connect]:
        """A function that builds providers of the kind."""
        providers: list[Provider] = []

        def build(
            endpoint: str, *, timeout_seconds: float = 10, secret: str | None = None
        ) -> Provider:
            if self.kind.connect is None:
                pytest.fail(f"{self.kind.name} has no external API; set Kind.connect")
            config = ProviderConfigSpec(
                provider=self.kind.provider,
                endpoint=endpoint,
                limits=Limits(request_timeout_seconds=timeout_seconds),
                allow=self.allow,
            )
            providers.append(self.kind.connect(config, Secrets(secret), CallPermit()))
            return providers[-1]

        yield build
        for provider in providers:
            await provider.close()

    @pytest.fixture
    def provider(self, endpoint: str, connect: Connect) -> Provider:
        """The provider, connected to its API."""
        return connect(endpoint)

    def needs_listing(self) -> None:
        """Skip the case if the kind's API cannot list."""
        if not self.kind.lists:
            pytest.skip(f"{self.kind.name} does not declare a listing")

    def can(self, *capabilities: Capability) -> bool:
        """Return whether the kind declares at least one of these capabilities."""
        return any(getattr(self.kind.capabilities, each) for each in capabilities)

    def needs(self, *capabilities: Capability) -> None:
        """Skip the case if the kind declares none of them."""
        if not self.can(*capabilities):
            pytest.skip(f"{self.kind.name} does not declare {' or '.join(capabilities)}")

    def needs_change_in_place(self) -> None:
        """Skip the case if the API cannot change one of the specs into the other in place."""
        specs = (self.fields, self.other_fields)
        first, second = (self.action("Update", "a", each).fields for each in specs)
        differences = {
            name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
        }
        if immutable := differences & self.kind.immutable:
            pytest.skip(f"{self.kind.name} cannot change {', '.join(sorted(immutable))} in place")

    def action(self, operation: Operation, name: str, fields: Fields | None = None) -> Action:
        """Build an action as a decider would, with its own key and no preconditions."""
        built = action(operation, name, {} if fields is None else self.object_fields(fields))
        return built if self.can("labels") else msgspec.structs.replace(built, labels={})

    async def refused_create(self, provider: Provider, name: str) -> Action:
        """Build a creation that the API refuses."""
        del provider
        if self.never_refused:
            pytest.skip(f"{self.kind.name}: {self.never_refused}")
        if not self.refused_fields:
            pytest.fail(
                f"{type(self).__name__}: set refused_fields to fields that make the API refuse "
                f"to create {self.kind.name}, or never_refused to the reason why it never refuses"
            )
        create = self.action("Create", name, self.fields)
        fields = {**create.fields, **self.refused_fields}
        return msgspec.structs.replace(create, fields=fields)

    def object_fields(self, fields: Fields) -> Fields:
        """Return the fields that an object should have for a spec."""
        return self.kind.object_fields(self.kind.check_fields(fields))

    def action_on(
        self, operation: Operation, observed: ExternalObject | None, fields: Fields | None = None
    ) -> Action:
        """Build an action on an object, with the uid and version of a read."""
        observed = require_object(observed)
        return with_version_of(self.action(operation, observed.name, fields), observed)

    async def create_one(self, provider: Provider, name: str) -> ExternalObject:
        """Create an object."""
        effect = await provider.create(self.action("Create", name, self.fields))
        return require_object(effect.object)

    def may_be_own(self, observed: ExternalObject | None, writer: Action) -> bool:
        """Return whether an object, if there is one, shows that an action wrote it."""
        if observed is None or observed.written_by == writer.idempotency_key:
            return True
        if self.can("labels"):
            return writer.labels.items() <= observed.labels.items()
        return observed.written_by is None  # only the API stores the key

    async def read_and_list(
        self, provider: Provider, name: str, uid: str | None = None
    ) -> list[ExternalObject]:
        """Return the objects that a read and a listing show for a name."""
        observed = await provider.read(name, uid)
        listed_objects = await listing(provider, Scope(prefix=name)) if self.kind.lists else []
        return [*([] if observed is None else [observed]), *listed_objects]

    def is_as_declared(self, observed: ExternalObject | None, fields: Fields) -> bool:
        """Return whether an object has the declared fields, in canonical form."""
        actual, declared = (
            self.kind.normalize(require_object(observed).fields),
            self.object_fields(fields),
        )
        if self.kind.comparable is not None:
            actual, declared = self.kind.comparable(actual), self.kind.comparable(declared)
        # Null is equal to a missing field: a defined kind shows undeclared fields in this way.
        return _without_null(actual) == _without_null(declared)

    def check_declared(
        self, observed: ExternalObject | None, fields: Fields, context: str = ""
    ) -> None:
        """Fail unless an object has the declared fields."""
        if not self.is_as_declared(observed, fields):
            expect(require_object(observed).fields, self.object_fields(fields), _NORMALIZE, context)

    def check_writer(
        self, observed: ExternalObject | None, writer: Action, context: str = ""
    ) -> None:
        """Fail if an object does not show which action wrote it."""
        if not self.may_be_own(observed, writer):
            expect(require_object(observed).written_by, writer.idempotency_key, _MARK, context)


class ProviderContract(ContractCase):
    """The contract of ``reconciler.provider.Provider``, for any transport to its API."""

    pytestmark = pytest.mark.asyncio

    async def test_a_created_object_is_read_as_it_was_declared(
        self, provider: Provider, name: str
    ) -> None:
        effect = await provider.create(self.action("Create", name, self.fields))

        observed = require_object(effect.object)
        expect(effect.replayed, False, "`Effect.replayed` is only for a repeated call")
        expect(observed, await provider.read(name), _AS_OBJECT)
        expect(observed.name, name, "`ExternalObject.name` is action.external_name")
        expect(observed.labels, LABELS if self.can("labels") else {}, _LABELS)
        expect(bool(observed.uid), True, _UID)
        expect(bool(observed.version) or not self.can("conditional_writes"), True, _VERSION)
        self.check_declared(observed, self.fields)

    async def test_a_second_create_with_the_same_key_has_no_second_effect(
        self, provider: Provider, name: str
    ) -> None:
        self.needs("idempotency_keys", "deterministic_names")
        create = self.action("Create", name, self.fields)
        first = await provider.create(create)

        expect(await repeat(provider.create(create)), first.object, _MARK)
        visible = await self.read_and_list(provider, name)
        expect(visible, [first.object] * (1 + self.kind.lists), _AS_OBJECT)

    async def test_a_second_create_with_the_same_key_is_reported_as_replayed(
        self, provider: Provider, name: str
    ) -> None:
        self.needs("idempotency_keys")
        create = self.action("Create", name, self.fields)
        first = await provider.create(create)
        second = await provider.create(create)

        expect((second.object, second.replayed), (first.object, True), _REPLAYED)

    async def test_a_create_over_another_clients_object_reports_it_and_changes_nothing(
        self, provider: Provider, name: str
    ) -> None:
        self.needs("deterministic_names")
        other_object = await self.create_one(provider, name)

        with raises(ConflictError, remedy=_OBSTACLE) as raised:
            await provider.create(self.action("Create", name, self.other_fields))
        expect(raised.value.obstacle, other_object, _OBSTACLE)
        expect(await provider.read(name), other_object, _NEVER_OVERWRITE)

    async def test_an_update_replaces_fields_and_labels_and_keeps_the_uid(
        self, provider: Provider, name: str
    ) -> None:
        self.needs_change_in_place()
        created = await self.create_one(provider, name)
        update = self.action_on("Update", created, self.other_fields)
        is_labeled = self.can("labels") and "labels" not in self.kind.immutable
        labels = {"only": "this"} if is_labeled else created.labels
        updated = (await provider.update(msgspec.structs.replace(update, labels=labels))).object

        updated = require_object(updated)
        expect(updated, await provider.read(name), _AS_OBJECT)
        expect(updated.uid, created.uid, _UID)
        has_new_version = updated.version != created.version
        expect(has_new_version or not self.can("conditional_writes"), True, _VERSION)
        expect(updated.labels, labels, _LABELS)
        self.check_declared(updated, self.other_fields)

    async def test_an_update_without_a_version_replaces_the_current_object(
        self, provider: Provider, name: str
    ) -> None:
        self.needs_change_in_place()
        created = await self.create_one(provider, name)
        update = self.action_on("Update", created, self.other_fields)
        effect = await provider.update(msgspec.structs.replace(update, version=None))

        current = await provider.read(name)
        expect(effect.object, current, _AS_OBJECT)
        expect(
            current != created,
            True,
            "`update` without a version replaces the object at any version",
        )

    async def test_an_update_of_an_old_version_reports_the_current_object(
        self, provider: Provider, name: str
    ) -> None:
        self.needs("conditional_writes")
        old = await self.create_one(provider, name)
        current = (await provider.update(self.action_on("Update", old, self.other_fields))).object

        with raises(ConflictError, remedy=_OBSTACLE) as raised:
            await provider.update(self.action_on("Update", old, self.fields))
        expect(raised.value.obstacle, current, _OBSTACLE)
        expect(await provider.read(name), current, _VERSION)

    async def test_an_update_of_an_absent_object_finds_nothing(
        self, provider: Provider, name: str
    ) -> None:
        deleted = await self.create_one(provider, name)
        await provider.delete(self.action_on("Delete", deleted))

        with raises(NotFoundError, remedy=_MISSING):
            await provider.update(self.action_on("Update", deleted, self.other_fields))
        with raises(NotFoundError, remedy=_MISSING):
            await provider.update(self.action("Update", name, self.other_fields))

    @pytest.mark.parametrize("with_version", [True, False])
    async def test_an_update_does_not_change_a_new_object_with_the_same_name(
        self, provider: Provider, name: str, with_version: bool
    ) -> None:
        own = await self.create_one(provider, name)
        await provider.delete(self.action_on("Delete", own))
        other_object = await self.create_one(provider, name)
        update = self.action_on("Update", own, self.other_fields)
        if not with_version:
            update = msgspec.structs.replace(update, version=None)

        with raises(ConflictError, NotFoundError, remedy=_UID) as raised:
            await provider.update(update)
        if isinstance(raised.value, ConflictError) or self.can("deterministic_names"):
            expect(raised.value.obstacle, other_object, _OBSTACLE)
        expect(await provider.read(name), other_object, _NEVER_OVERWRITE)

    async def test_a_deleted_object_is_read_as_absent(self, provider: Provider, name: str) -> None:
        created = await self.create_one(provider, name)
        effect = await provider.delete(self.action_on("Delete", created))

        expect((effect.object, effect.absent), (None, False), _ABSENT)
        expect(
            await provider.read(name),
            None,
            "`delete` must delete the object, and `read` must then return None",
        )

    async def test_a_deletion_ignores_the_version(self, provider: Provider, name: str) -> None:
        self.needs_change_in_place()
        created = await self.create_one(provider, name)
        await provider.update(self.action_on("Update", created, self.other_fields))
        await provider.delete(self.action_on("Delete", created))

        expect(await provider.read(name), None, "`delete` deletes whatever the version is")

    async def test_a_deletion_does_not_delete_a_new_object_with_the_same_name(
        self, provider: Provider, name: str
    ) -> None:
        own = await self.create_one(provider, name)
        await provider.delete(self.action_on("Delete", own))
        other_object = await self.create_one(provider, name)

        if self.can("deterministic_names"):
            with raises(ConflictError, remedy=_OBSTACLE) as raised:
                await provider.delete(self.action_on("Delete", own))
            expect(raised.value.obstacle, other_object, _OBSTACLE)
        else:  # the API assigns the ids, so the object is only missing
            absent = (await provider.delete(self.action_on("Delete", own))).absent
            expect(absent, True, _ABSENT)
        expect(await provider.read(name), other_object, _UID)

    async def test_an_object_with_newer_data_is_neither_deleted_nor_updated(
        self, provider: Provider, name: str
    ) -> None:
        if not self.kind.describes_data:
            pytest.skip(f"{self.kind.name} has no describe_data_loss")
        if NamedObjects not in type(provider).__mro__:
            pytest.skip("a worker reads the object before it calls a provider of another class")
        created = await self.create_one(provider, name)
        update = self.action_on("Update", created, self.other_fields)
        token = DATA_CHECK.set(DataCheck(lambda _: "newer data", ""))
        try:
            with raises(ConflictError, remedy=_DATA) as raised:
                await provider.delete(self.action_on("Delete", created))
            expect(raised.value.obstacle, created, _DATA)
            with raises(ConflictError, remedy=_DATA):
                await provider.update(update)
        finally:
            DATA_CHECK.reset(token)
        expect(await provider.read(name), created, _DATA)

    async def test_deleting_an_absent_object_succeeds(self, provider: Provider, name: str) -> None:
        effect = await provider.delete(self.action("Delete", name))
        expect((effect.object, effect.absent), (None, True), _ABSENT)
        delete = msgspec.structs.replace(self.action("Delete", name), uid="uid-of-ours")
        expect((await provider.delete(delete)).absent, True, _ABSENT)

    async def test_an_absent_object_is_read_as_none(self, provider: Provider, name: str) -> None:
        expect(await provider.read(name), None, "`read` returns None for a missing object")

    async def test_a_listing_in_small_pages_is_complete(
        self, provider: Provider, name: str
    ) -> None:
        self.needs_listing()
        created = [await self.create_one(provider, f"{name}-{number}") for number in range(7)]
        objects = await listing(provider, Scope(prefix=name), page_size=3)

        expect(sorted(objects, key=lambda observed: observed.name), created, _LISTING)

    async def test_a_listing_shows_only_the_scopes_prefix(
        self, provider: Provider, name: str
    ) -> None:
        self.needs_listing()
        matching = [await self.create_one(provider, f"{name}-a{number}") for number in range(2)]
        await self.create_one(provider, f"{name}-b")
        objects = await listing(provider, Scope(prefix=f"{name}-a"))

        expect(sorted(objects, key=lambda observed: observed.name), matching, _SCOPE)
        expect(await listing(provider, Scope(prefix=f"{name}-c")), [], _SCOPE)

    async def test_a_listing_shows_only_the_scopes_labels(
        self, provider: Provider, name: str
    ) -> None:
        self.needs("labels")
        self.needs_listing()
        team = {"team": "x+y & z=1/2", "run": name}
        for suffix, labels in {"a-both": team, "a-one": {"run": name}, "b-both": team}.items():
            create = self.action("Create", f"{name}-{suffix}", self.fields)
            await provider.create(msgspec.structs.replace(create, labels=labels))

        async def names(scope: Scope) -> list[str]:
            objects = await listing(provider, scope)
            return sorted(observed.name.removeprefix(f"{name}-") for observed in objects)

        expect(await names(Scope(labels=team)), ["a-both", "b-both"], _SCOPE)
        expect(await names(Scope(prefix=f"{name}-a", labels=team)), ["a-both"], _SCOPE)

    async def test_no_request_is_sent_before_the_permit_allows_it(
        self, provider: Provider, name: str
    ) -> None:
        """Otherwise no test would notice a missing rate limit, or a crash between two requests."""
        created = await self.create_one(provider, name)
        other_name = f"{name}-other"
        for call in (
            provider.create(self.action("Create", other_name, self.fields)),
            provider.update(self.action_on("Update", created, self.other_fields)),
            provider.delete(self.action_on("Delete", created)),
            provider.read(name, created.uid),
        ):
            expect(await is_interrupted(1, call), True, _PERMIT, call.__qualname__)
        if self.kind.lists:
            awaits_permit = await is_interrupted(1, listing(provider, Scope(prefix=name)))
            expect(awaits_permit, True, _PERMIT, "pages")
        expect(await self.read_and_list(provider, other_name), [], _PERMIT, "create")
        expect(await provider.read(name, created.uid), created, _PERMIT, "update, delete")

    async def test_a_create_interrupted_before_any_request_continues_when_repeated(
        self, provider: Provider, name: str
    ) -> None:
        self.needs("idempotency_keys", "deterministic_names")
        for number, object_name in number_requests(name):
            create = self.action("Create", object_name, self.fields)
            if not await is_interrupted(number, provider.create(create)):
                break
            for partial in await self.read_and_list(provider, object_name):
                self.check_writer(partial, create, f"after a crash before request {number}")
            created = await repeat(provider.create(create))

            context = f"repeated after a crash before request {number}"
            self.check_declared(created, self.fields, context)
            self.check_writer(created, create, context)
            visible = await self.read_and_list(provider, object_name)
            expect(visible, [created] * (1 + self.kind.lists), _RESUME, context)

    async def test_an_update_interrupted_before_any_request_can_be_repeated(
        self, provider: Provider, name: str
    ) -> None:
        self.needs_change_in_place()
        for number, object_name in number_requests(name):
            created = await self.create_one(provider, object_name)
            update = self.action_on("Update", created, self.other_fields)
            if not await is_interrupted(number, provider.update(update)):
                break
            partial = await provider.read(object_name, created.uid)
            context = f"after a crash before request {number}"
            partial = require_object(partial)
            expect(partial.uid, created.uid, _UID, context)
            if partial != created:
                self.check_writer(partial, update, context)
            try:
                await provider.update(update)
            except ConflictError as conflict:  # its own first request changed the version
                await provider.update(
                    self.action_on("Update", conflict.obstacle, self.other_fields)
                )

            updated = await provider.read(object_name, created.uid)
            self.check_declared(updated, self.other_fields, f"repeated {context}")
            expect(require_object(updated).uid, created.uid, _UID, f"repeated {context}")

    async def test_a_deletion_interrupted_before_any_request_can_be_repeated(
        self, provider: Provider, name: str
    ) -> None:
        for number, object_name in number_requests(name):
            created = await self.create_one(provider, object_name)
            delete = self.action_on("Delete", created)
            if not await is_interrupted(number, provider.delete(delete)):
                break
            partial = await provider.read(object_name, created.uid)
            context = f"repeated after a crash before request {number}"
            expect(created.uid if partial is None else partial.uid, created.uid, _UID, context)
            expect((await provider.delete(delete)).object, None, _ABSENT, context)
            expect(await provider.read(object_name, created.uid), None, _RESUME, context)

    async def test_a_creation_that_is_refused_and_then_corrected_creates_one_object(
        self, provider: Provider, name: str
    ) -> None:
        for _ in range(2):  # a repeat is refused like the first call
            create = await self.refused_create(provider, name)
            await fails_without_effect(provider.create(create))
        expect(await self.read_and_list(provider, name), [], _NOT_DONE)
        created = await self.create_one(provider, name)

        self.check_declared(created, self.fields)
        visible = await self.read_and_list(provider, name, created.uid)
        expect(visible, [created] * (1 + self.kind.lists), _AS_OBJECT)

    async def test_a_creation_that_is_refused_and_then_withdrawn_leaves_nothing(
        self, provider: Provider, name: str
    ) -> None:
        create = await self.refused_create(provider, name)
        await fails_without_effect(provider.create(create))
        expect(await self.read_and_list(provider, name), [], _NOT_DONE)

        absent = (await provider.delete(self.action("Delete", name))).absent
        expect(absent, True, _ABSENT)

    async def test_a_name_that_the_api_does_not_allow_is_refused(self, provider: Provider) -> None:
        for name in BAD_NAMES:
            if self.kind.name_problem(name) is None:
                continue
            with raises(RefusedError, remedy=_NAME):
                await provider.create(self.action("Create", name, self.fields))
            with raises(RefusedError, remedy=_NAME):
                await provider.delete(self.action("Delete", name))


def _without_null(fields: Fields) -> Fields:
    return {name: each for name, each in fields.items() if each is not None}


def action(operation: Operation, name: str, fields: Fields) -> Action:
    """Build an action with its own key, the owner label and no preconditions."""
    unique = uuid4().hex
    return Action(
        action_id=unique,
        idempotency_key=f"key-{unique}",
        operation=operation,
        generation=1,
        provider_config="default",
        external_name=name,
        causes=("test",),
        fields=fields,
        labels=LABELS,
    )


def with_version_of(base_action: Action, observed: ExternalObject) -> Action:
    """Return an action with the uid and version of an object."""
    return msgspec.structs.replace(base_action, uid=observed.uid, version=observed.version)


class _Interruption(BaseException):
    """The simulated end of a process."""


class _InterruptBefore:
    """A permit that ends a call before one of its requests, to simulate a crash."""

    may_send_now = False
    interval_seconds = 0.0

    def __init__(self, request: int) -> None:
        self._remaining = request

    def record_status(self, status: int) -> None:
        del status

    async def wait(self, *, has_priority: bool = False) -> None:
        del has_priority
        self._remaining -= 1
        if self._remaining == 0:
            raise _Interruption


async def is_interrupted(request: int, call: Awaitable[object]) -> bool:
    """Interrupt a call before the request with this number. Return whether it got that far."""
    token = CALL_GATE.set(_InterruptBefore(request))
    try:
        await call
    except _Interruption:
        return True
    finally:
        CALL_GATE.reset(token)
    return False


def number_requests(name: str) -> Iterator[tuple[int, str]]:
    """Yield request numbers from one, each with a new object name.

    Fail if a call makes more requests than any call should.
    """
    for number in range(1, MAX_REQUESTS + 1):
        yield number, f"{name}-{number:02}"
    pytest.fail(f"a call makes more than {MAX_REQUESTS} requests")


async def fails_without_effect(call: Awaitable[Effect]) -> None:
    """Check that a call fails, and that its failure proves that nothing was changed."""
    record = CallRecord()
    token = CALL_RECORD.set(record)
    try:
        with raises(NotDoneError, RefusedError, remedy=_NOT_DONE) as raised:
            await call
    finally:
        CALL_RECORD.reset(token)
    expect(raised.value.obstacle, None, _NOT_DONE, str(raised.value))
    expect(record.has_written, False, _NOT_DONE, str(raised.value))


async def repeat(call: Awaitable[Effect]) -> ExternalObject | None:
    """Return the object in the response to a repeated write, or the obstacle that it reports."""
    try:
        return (await call).object
    except ConflictError as conflict:
        return conflict.obstacle


async def listing(
    provider: Provider, scope: Scope, *, page_size: int = 100
) -> list[ExternalObject]:
    """Return all objects in a scope."""
    return [
        observed async for page in provider.pages(scope, page_size=page_size) for observed in page
    ]
