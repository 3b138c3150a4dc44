"""An object that repeats a secret is recorded without it, and is not confused with others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from events.external import ExternalObject, digest
from events.intake import ListingBegan, Observed
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from projections.status import StatusRow
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.roles.objects.object_secrets import hide_and_digest, hide_secrets
from reconciler.roles.objects.oversize import MAX_SEARCHED_BYTES, build_size_letter, is_too_large
from reconciler.roles.observer.listing import ListingAssembler, compare_listing
from reconciler.roles.runtime.search_turns import SearchTurns
from reconciler.secrecy import HIDDEN, Secrecy, complete
from tests.security.encodings import encode_in_every_way

TOKEN = "planted&token<7f3a91c2>"
CONFIG = ProviderConfigSpec("shapes", "http://shapes")


def shape(name: str = "foo", uid: str | None = "u1", **fields: Any) -> ExternalObject:
    return ExternalObject(name, {"color": "Red", **fields}, uid)


def row(observed_object: ExternalObject | None = None, **more: Any) -> StatusRow:
    return StatusRow(
        "default",
        "Shape",
        "foo",
        provider_config="default",
        external_name="foo",
        observed_digest="" if observed_object is None else digest(observed_object),
        uid=None if observed_object is None else observed_object.uid,
        declared=True,
        owned=observed_object is not None,
        **more,
    )


async def observe(
    observed_object: ExternalObject, *rows: StatusRow, secrecy: Secrecy | None = None
) -> list[Observed]:
    listing = ListingAssembler(ListingBegan("default", "Shape", 5), None)
    listing.add([observed_object])
    by_name = {str(each.key): each for each in rows}
    searches = SearchTurns(secrecy or Secrecy(TOKEN))
    findings = await compare_listing(
        listing, listing.complete(1), by_name, CONFIG, "log", searches=searches
    )
    assert findings.losses.missing == 0
    return [each for _, each in findings.observed]


@pytest.mark.parametrize(
    "encoding", encode_in_every_way(TOKEN).values(), ids=encode_in_every_way(TOKEN)
)
def test_a_secret_is_hidden_in_all_parts_of_an_object(encoding: str) -> None:
    observed_object = ExternalObject(
        "foo",
        {"a": [{"b": f"<{encoding}>"}], f"key {encoding}": 1},
        "u1",
        version=f"v {encoding}",
        labels={"seen": f"Bearer {encoding}", f"{encoding}": "x"},
        outputs={"url": f"http://h/?{encoding}"},
    )
    hidden = complete(hide_secrets(observed_object, Secrecy(TOKEN)))
    assert hidden is not None
    assert (hidden.name, hidden.uid) == ("foo", "u1")
    for part in (hidden.fields, hidden.labels, hidden.outputs, hidden.version):
        assert HIDDEN in str(part)
        assert encoding not in str(part)
        assert json.dumps(encoding) not in json.dumps(part)


def test_an_object_without_a_secret_stays_the_same_object() -> None:
    observed_object = shape(text='a "quoted" 100 % & more')
    assert complete(hide_secrets(shape(), Secrecy(TOKEN))) == shape()
    assert complete(hide_secrets(observed_object, Secrecy(TOKEN))) == observed_object
    odd = shape(number=10**400, what=object())
    assert complete(hide_secrets(odd, Secrecy(TOKEN))) == odd


@pytest.mark.parametrize(
    "observed_object", [shape(f"shape-{TOKEN}"), shape(uid=TOKEN)], ids=["name", "id"]
)
async def test_an_object_whose_identity_contains_a_secret_is_not_recorded(
    observed_object: ExternalObject,
) -> None:
    assert complete(hide_secrets(observed_object, Secrecy(TOKEN))) is None
    assert complete(hide_and_digest(observed_object, Secrecy(TOKEN), [row()])) is None
    assert await observe(observed_object) == []


@pytest.mark.parametrize("separator", [".", "/", " ", "~~", "\u00e9"])
async def test_an_object_is_not_recorded_if_its_resource_would_be_named_like_a_secret(
    separator: str,
) -> None:
    """A resource name has "-" in place of characters that it cannot contain."""
    secrecy = Secrecy("3f2b1c77-1111-4222-8333-abcdef012345")
    observed_object = shape("3f2b1c77-1111-4222-8333-abcdef012345".replace("-", separator))
    assert await observe(observed_object, secrecy=secrecy) == []
    declared = replace(row(), external_name=observed_object.name)
    assert [each.object for each in await observe(observed_object, declared, secrecy=secrecy)] == [
        observed_object
    ]


async def test_our_object_with_a_secret_id_is_neither_changed_nor_missing() -> None:
    known_row = row(shape())
    assert await observe(shape(uid=TOKEN), known_row) == []


async def test_an_object_that_is_too_large_to_search_is_not_shown() -> None:
    """A search takes up to two seconds per MiB, so one response would slow all other work."""
    secrecy = Secrecy(TOKEN)
    huge = shape(text="%2561" * (MAX_SEARCHED_BYTES // 5) + TOKEN)
    [observation] = await observe(huge, row(shape()), secrecy=secrecy)
    assert sum(hide_and_digest(huge, secrecy, [row(shape())])) < 1_000
    assert is_too_large(observation.object), "the observer publishes none of it"
    letter = build_size_letter(ResourceKey("default", "Shape", "foo"), observation)
    assert TOKEN not in letter.reason + letter.delivery.payload.decode()
    assert "'foo' of 'default': its 5" in letter.reason


@pytest.mark.parametrize(
    "observed_object", [shape("n" * 600_000), shape(uid="u" * 600_000)], ids=["name", "id"]
)
async def test_an_object_whose_identity_is_too_long_to_search_is_not_recorded(
    observed_object: ExternalObject,
) -> None:
    assert complete(hide_secrets(observed_object, Secrecy(TOKEN))) is None
    assert sum(hide_secrets(observed_object, Secrecy(TOKEN))) < 1_000


async def test_a_search_of_many_objects_yields_to_other_work() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    listing = ListingAssembler(ListingBegan("default", "Shape", 5), None)
    listing.add([shape(f"n{number}", text="%61" * 30_000) for number in range(20)])
    counter = asyncio.create_task(count())
    searches = SearchTurns(Secrecy(TOKEN))
    await compare_listing(listing, listing.complete(20), {}, CONFIG, "log", searches=searches)
    counter.cancel()
    assert turns >= 8


def test_an_object_with_a_long_name_or_id_is_too_large() -> None:
    assert not is_too_large(shape("n" * 2048, uid="u" * 2048))
    assert is_too_large(shape("n" * 2049))
    assert is_too_large(shape(uid="u" * 2049))


def test_content_of_the_action_itself_is_not_hidden() -> None:
    secrecy = Secrecy("postgres")
    observed_object = ExternalObject(
        "postgres", {"owner": "postgres", "url": "postgres://x"}, "postgres"
    )
    written_object = complete(
        hide_secrets(observed_object, secrecy, {"owner": "postgres"}, "postgres")
    )
    assert written_object == replace(
        observed_object, fields={"owner": "postgres", "url": f"{HIDDEN}://x"}
    )


async def test_an_object_that_repeats_a_secret_is_reported_once() -> None:
    observed_object = shape(note=f"Bearer {TOKEN}")
    [first] = await observe(observed_object, row(shape()))
    assert first.object == shape(note=f"Bearer {HIDDEN}")
    assert await observe(observed_object, row(first.object)) == []
    changed = shape(note=f"Bearer {TOKEN}", size=2)
    [second] = await observe(changed, row(first.object))
    assert second.object == shape(note=f"Bearer {HIDDEN}", size=2)


async def test_a_weak_secret_does_not_cause_drift_in_what_was_written_with_it() -> None:
    observed_object = shape(owner="postgres")
    assert await observe(observed_object, row(observed_object), secrecy=Secrecy("postgres")) == []


async def test_our_own_mark_on_an_object_is_kept_and_a_forged_one_is_hidden() -> None:
    known_row = row(shape())
    for log_id, secret in (("log", "default"), ("log", "Shape.foo"), (TOKEN, TOKEN)):
        mark = owner(log_id, known_row.key)
        observed_object = replace(shape(size=2), labels={OWNER_LABEL: mark})
        [observation] = await observe(observed_object, known_row, secrecy=Secrecy(secret))
        assert observation.object is not None
        assert (observation.object.labels[OWNER_LABEL] == mark) == (secret != TOKEN)


def test_a_secret_in_a_list_of_bytes_is_hidden() -> None:
    secrecy = Secrecy(TOKEN)
    buffer = {"type": "Buffer", "data": list(f"token {TOKEN}".encode())}
    assert secrecy.is_in_json(json.dumps({"at": list(TOKEN.encode())}).encode())
    assert secrecy.hide_in(buffer) == {"type": "Buffer", "data": [HIDDEN]}
    for harmless in ([1, 2, 3, 4, 5, 6, 7], [300, -1, 0, 0, 0, 0], [True] * 9, list(TOKEN)):
        assert secrecy.hide_in({"at": harmless}) == {"at": harmless}


@pytest.mark.parametrize("part", ["version", "written_by"])
def test_a_secret_is_hidden_in_parts_that_a_known_objects_digest_omits(part: str) -> None:
    known_object = replace(shape(), version="1", written_by="key")
    observed_object = replace(known_object, **{part: TOKEN})
    recorded = complete(hide_and_digest(observed_object, Secrecy(TOKEN), [row(known_object)]))
    assert recorded == (replace(observed_object, **{part: HIDDEN}), digest(known_object))
