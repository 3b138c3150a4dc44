"""The contract of ``reconciler.provider.Provider``, kept by each provider with its real API."""

from __future__ import annotations

import socket

import msgspec
import pytest

from events.manifest import Scope
from reconciler.errors import (
    ConflictError,
    NotFoundError,
    PermanentError,
    ProviderError,
    ThrottledError,
    TransientError,
    UnknownResultError,
)
from reconciler.provider import Provider
from tests.providers.cases import Case
from tests.providers.connect import LABELS, Connect, action, listing, upon
from tests.providers.proxy import Harm, Proxy, answer

IMPATIENT_SECONDS = 2.0  # half of it must do for a connection, on a busy machine, too


async def test_a_created_object_is_read_as_it_was_declared(
    case: Case, provider: Provider, name: str
) -> None:
    effect = await provider.create(action("Create", name, case.fields))

    assert effect.object is not None
    assert not effect.replayed
    assert effect.object == await provider.read(name)
    assert effect.object.labels == LABELS
    assert effect.object.uid
    assert effect.object.version
    assert case.kind.normalize(effect.object.fields) == case.kind.checked_fields(case.fields)


async def test_a_second_create_with_the_same_key_gives_the_first_answer(
    case: Case, provider: Provider, name: str
) -> None:
    create = action("Create", name, case.fields)
    first = await provider.create(create)
    second = await provider.create(create)

    assert second.replayed
    assert second.object == first.object


async def test_a_create_on_a_strangers_object_shows_the_obstacle_and_changes_nothing(
    case: Case, provider: Provider, name: str
) -> None:
    stranger = (await provider.create(action("Create", name, case.fields))).object

    with pytest.raises(ConflictError) as caught:
        await provider.create(action("Create", name, case.other_fields))
    assert caught.value.obstacle == stranger
    assert await provider.read(name) == stranger


async def test_an_update_replaces_fields_and_labels_and_keeps_the_uid(
    case: Case, provider: Provider, name: str
) -> None:
    created = (await provider.create(action("Create", name, case.fields))).object
    update = upon("Update", created, case.other_fields)
    update = msgspec.structs.replace(update, labels={"only": "this"})
    updated = (await provider.update(update)).object

    assert created is not None
    assert updated is not None
    assert updated == await provider.read(name)
    assert updated.uid == created.uid
    assert updated.version != created.version
    assert updated.labels == {"only": "this"}
    assert case.kind.normalize(updated.fields) == case.kind.checked_fields(case.other_fields)


async def test_an_update_without_a_version_replaces_what_is_there(
    case: Case, provider: Provider, name: str
) -> None:
    created = (await provider.create(action("Create", name, case.fields))).object
    update = msgspec.structs.replace(upon("Update", created, case.other_fields), version=None)

    assert (await provider.update(update)).object == await provider.read(name) != created


async def test_an_update_of_an_old_version_shows_what_is_there_now(
    case: Case, provider: Provider, name: str
) -> None:
    old = (await provider.create(action("Create", name, case.fields))).object
    now = (await provider.update(upon("Update", old, case.other_fields))).object

    with pytest.raises(ConflictError) as caught:
        await provider.update(upon("Update", old, case.fields))
    assert caught.value.obstacle == now
    assert await provider.read(name) == now


async def test_an_update_of_an_absent_object_finds_nothing(
    case: Case, provider: Provider, name: str
) -> None:
    gone = (await provider.create(action("Create", name, case.fields))).object
    await provider.delete(upon("Delete", gone, {}))

    with pytest.raises(NotFoundError):
        await provider.update(upon("Update", gone, case.other_fields))
    with pytest.raises(NotFoundError):
        await provider.update(action("Update", name, case.other_fields))


@pytest.mark.parametrize("with_version", [True, False])
async def test_an_update_spares_another_object_that_has_taken_the_name(
    case: Case, provider: Provider, name: str, with_version: bool
) -> None:
    ours = (await provider.create(action("Create", name, case.fields))).object
    await provider.delete(upon("Delete", ours, {}))
    stranger = (await provider.create(action("Create", name, case.fields))).object

    update = upon("Update", ours, case.other_fields)
    if not with_version:
        update = msgspec.structs.replace(update, version=None)
    with pytest.raises(ConflictError) as caught:
        await provider.update(update)
    assert caught.value.obstacle == stranger
    assert await provider.read(name) == stranger


async def test_a_deleted_object_is_read_as_absent(
    case: Case, provider: Provider, name: str
) -> None:
    created = (await provider.create(action("Create", name, case.fields))).object
    effect = await provider.delete(upon("Delete", created, {}))

    assert (effect.object, effect.absent) == (None, False)
    assert await provider.read(name) is None


async def test_a_deletion_does_not_mind_another_version(
    case: Case, provider: Provider, name: str
) -> None:
    created = (await provider.create(action("Create", name, case.fields))).object
    await provider.update(upon("Update", created, case.other_fields))
    await provider.delete(upon("Delete", created, {}))

    assert await provider.read(name) is None


async def test_a_deletion_spares_another_object_that_has_taken_the_name(
    case: Case, provider: Provider, name: str
) -> None:
    stranger = (await provider.create(action("Create", name, case.fields))).object
    delete = msgspec.structs.replace(upon("Delete", stranger, {}), uid="uid-of-ours")

    with pytest.raises(ConflictError) as caught:
        await provider.delete(delete)
    assert caught.value.obstacle == stranger
    assert await provider.read(name) == stranger


async def test_deleting_what_is_absent_is_a_success(provider: Provider, name: str) -> None:
    effect = await provider.delete(action("Delete", name, {}))
    assert (effect.object, effect.absent) == (None, True), "not this call deleted it"
    delete = msgspec.structs.replace(action("Delete", name, {}), uid="uid-of-ours")
    assert (await provider.delete(delete)).absent


async def test_an_absent_object_is_read_as_none(provider: Provider, name: str) -> None:
    assert await provider.read(name) is None


async def test_a_listing_is_complete_over_several_pages(
    case: Case, provider: Provider, name: str
) -> None:
    created = [
        (await provider.create(action("Create", f"{name}-{number}", case.fields))).object
        for number in range(7)
    ]
    pages = [page async for page in provider.pages(Scope(prefix=name), page_size=3)]

    assert [thing for page in pages for thing in page] == created
    assert len([page for page in pages if page]) > 1


async def test_a_listing_shows_the_scopes_labels_and_prefix_only(
    case: Case, provider: Provider, name: str
) -> None:
    for suffix, labels in {
        "a-both": {"team": "x+y & z=1/2", "run": name},
        "a-one": {"run": name},
        "b-both": {"team": "x+y & z=1/2", "run": name},
    }.items():
        create = action("Create", f"{name}-{suffix}", case.fields)
        await provider.create(msgspec.structs.replace(create, labels=labels))

    async def names(scope: Scope) -> list[str]:
        return [thing.name.removeprefix(f"{name}-") for thing in await listing(provider, scope)]

    team = {"team": "x+y & z=1/2", "run": name}
    assert await names(Scope(prefix=f"{name}-a")) == ["a-both", "a-one"]
    assert await names(Scope(labels=team)) == ["a-both", "b-both"]
    assert await names(Scope(prefix=f"{name}-a", labels=team)) == ["a-both"]
    assert await names(Scope(prefix=f"{name}-c")) == []


@pytest.mark.parametrize("harm", [answer(503), Harm.LOSE_REPLY, Harm.CUT_REPLY, answer(200, "{")])
async def test_a_listing_that_fails_half_way_raises(
    case: Case, provider: Provider, harmed: Provider, proxy: Proxy, name: str, harm: Harm | bytes
) -> None:
    for number in range(4):
        await provider.create(action("Create", f"{name}-{number}", case.fields))
    proxy.plan.extend([Harm.NONE, harm])

    with pytest.raises(TransientError):
        await listing(harmed, Scope(labels=LABELS), page_size=2)
    assert len(proxy.requests) == 2


async def test_a_refused_connection_is_transient_since_nothing_was_sent(
    case: Case, connect: Connect, name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = connect(case.kind, f"http://127.0.0.1:{port}{case.endpoint_path}")

    for call in (
        nobody.create(action("Create", name, case.fields)),
        nobody.update(action("Update", name, case.fields)),
        nobody.delete(action("Delete", name, {})),
        nobody.read(name),
        listing(nobody, Scope()),
    ):
        with pytest.raises(TransientError):
            await call


async def test_a_read_without_an_answer_in_time_is_transient(
    case: Case, proxy: Proxy, connect: Connect, name: str
) -> None:
    impatient = connect(
        case.kind, proxy.url + case.endpoint_path, timeout_seconds=IMPATIENT_SECONDS
    )
    proxy.plan.append(Harm.HOLD_REPLY)

    with pytest.raises(TransientError):
        await impatient.read(name)


async def test_a_write_without_an_answer_in_time_has_an_unknown_result(
    case: Case, proxy: Proxy, connect: Connect, name: str
) -> None:
    impatient = connect(
        case.kind, proxy.url + case.endpoint_path, timeout_seconds=IMPATIENT_SECONDS
    )
    proxy.plan.append(Harm.HOLD_REPLY)

    with pytest.raises(UnknownResultError):
        await impatient.create(action("Create", name, case.fields))


@pytest.mark.parametrize("harm", [Harm.LOSE_REPLY, Harm.CUT_REPLY])
async def test_a_create_whose_answer_was_lost_has_one_effect_when_repeated(
    case: Case, harmed: Provider, proxy: Proxy, name: str, harm: Harm
) -> None:
    create = action("Create", name, case.fields)
    proxy.plan.append(harm)
    with pytest.raises(UnknownResultError):
        await harmed.create(create)
    assert len(proxy.requests) == 1
    made = await harmed.read(name)
    effect = await harmed.create(create)

    assert effect.replayed
    assert made is not None
    assert effect.object == made == await harmed.read(name)


async def test_an_update_whose_answer_was_lost_has_one_effect_when_repeated(
    case: Case, provider: Provider, harmed: Provider, proxy: Proxy, name: str
) -> None:
    created = (await provider.create(action("Create", name, case.fields))).object
    update = msgspec.structs.replace(upon("Update", created, case.other_fields), uid=None)
    proxy.plan.append(Harm.LOSE_REPLY)
    with pytest.raises(UnknownResultError):
        await harmed.update(update)
    assert proxy.methods() == ["PUT"]
    made = await provider.read(name)
    effect = await harmed.update(update)

    assert effect.replayed
    assert effect.object == made == await provider.read(name) != created


async def test_a_deletion_whose_answer_was_lost_succeeds_when_repeated(
    case: Case, provider: Provider, harmed: Provider, proxy: Proxy, name: str
) -> None:
    created = (await provider.create(action("Create", name, case.fields))).object
    delete = upon("Delete", created, {})
    proxy.plan.extend([Harm.NONE, Harm.LOSE_REPLY])
    with pytest.raises(UnknownResultError):
        await harmed.delete(delete)

    assert proxy.methods() == ["GET", "DELETE"]
    assert (await harmed.delete(delete)).object is None
    assert await provider.read(name) is None


@pytest.mark.parametrize(
    ("planned", "error"),
    [
        (answer(503, Retry_After="7"), TransientError),
        (answer(429, Retry_After="7"), ThrottledError),
        (answer(500), UnknownResultError),
        (answer(502), UnknownResultError),
        (answer(200, "<html>"), UnknownResultError),
        (answer(201, "{}"), UnknownResultError),
        (b"not http at all\r\n\r\n", UnknownResultError),
        (answer(400, '{"detail": "no good"}'), PermanentError),
        (answer(401), TransientError),
        (answer(403), TransientError),
        (answer(307, Location="http://elsewhere.example/"), TransientError),
    ],
)
async def test_the_answer_to_a_write_decides_its_error_class(
    case: Case,
    harmed: Provider,
    proxy: Proxy,
    name: str,
    planned: bytes,
    error: type[ProviderError],
) -> None:
    proxy.plan.append(planned)

    with pytest.raises(error) as caught:
        await harmed.create(action("Create", name, case.fields))
    assert type(caught.value) is error
    assert len(proxy.requests) == 1
    if b"Retry-After" in planned:
        assert caught.value.retry_after_seconds == 7


async def test_an_answer_about_another_object_is_not_believed(
    case: Case, provider: Provider, harmed: Provider, proxy: Proxy, api_url: str, name: str
) -> None:
    await provider.create(action("Create", name, case.fields))
    proxy.plan.append(Harm.NONE)
    await harmed.read(name)
    _, path = proxy.requests[0]
    lie = await Proxy(api_url).fetch(path)
    proxy.plan.append(lie)

    with pytest.raises(TransientError, match="it is about"):
        await harmed.read(f"{name}-2")


async def test_a_name_that_the_api_cannot_have_is_never_sent(
    case: Case, harmed: Provider, proxy: Proxy
) -> None:
    assert case.kind.name_problem("..") is not None
    for name in ("..", "a/b", "", "a\n"):
        with pytest.raises(PermanentError):
            await harmed.delete(action("Delete", name, {}))
        with pytest.raises(PermanentError):
            await harmed.create(action("Create", name, case.fields))
    assert proxy.requests == []


async def test_the_secret_is_a_bearer_token_and_in_no_message(
    case: Case, proxy: Proxy, connect: Connect, name: str
) -> None:
    let_in = connect(case.kind, proxy.url + case.endpoint_path, secret="s3cr3t\n")
    proxy.plan.append(answer(401, '{"detail": "the token s3cr3t is out of date"}'))

    with pytest.raises(TransientError) as caught:
        await let_in.create(action("Create", name, case.fields))
    assert "authorization: bearer s3cr3t" in proxy.heads[0].lower()
    assert "s3cr3t" not in str(caught.value)
    assert "credentialsRef" in str(caught.value)
