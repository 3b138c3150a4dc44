"""Conversion of ids, topics and versions to messages and back."""

import re
from uuid import UUID

import pytest
from eventsourcing.persistence import DataError, StoredEvent
from hypothesis import given
from hypothesis import strategies as st

from infra.eventstore.header_layout import HeaderLayout
from infra.eventstore.resource_layout import ResourceLayout
from infra.eventstore.tokens import originator_id_of, token_of
from infra.jetstream.reads import StoredMessage
from tests.eventstore.helpers import plain

strings = st.text(st.characters(exclude_categories=()), max_size=80)
ids = st.uuids() | strings


@given(ids)
def test_an_id_is_decoded_from_its_token(originator_id: UUID | str) -> None:
    token = token_of(originator_id)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    assert originator_id_of(token) == originator_id


@given(ids, ids)
def test_different_ids_have_different_tokens(first: UUID | str, second: UUID | str) -> None:
    assert (first == second) == (token_of(first) == token_of(second))


@pytest.mark.parametrize("token", ["", "x", "u-1", "s-_", "s-_zz", "s-ü", "s-a.b_20"])
def test_a_foreign_token_is_refused(token: str) -> None:
    with pytest.raises(DataError):
        print(repr(originator_id_of(token)))


events = st.builds(
    StoredEvent,
    originator_id=ids,
    originator_version=st.integers(0, 2**63),
    topic=st.text(max_size=50),
    state=st.binary(max_size=50),
)


@given(events)
def test_an_event_is_decoded_from_its_message(event: StoredEvent) -> None:
    layout = HeaderLayout("base")
    entry = layout.encode(event)
    message = StoredMessage(1, entry.subject, entry.payload, entry.headers, 0)
    assert plain([layout.decode(message)]) == [event]
    assert layout.version_of(message) == event.originator_version
    assert layout.sequence_at(message.subject) == entry.sequence
    assert all("\r" not in v and "\n" not in v for v in (entry.headers or {}).values())


@pytest.mark.parametrize("headers", [None, {"ES-Version": "1"}, {"ES-Topic": "t"}])
def test_a_message_without_our_headers_is_refused(headers: dict[str, str] | None) -> None:
    message = StoredMessage(7, "es.base.events.s-a", b"", headers, 0)
    with pytest.raises(DataError, match=r"message 7 on es\.base\.events\.s-a"):
        HeaderLayout("base").decode(message)


@pytest.mark.parametrize("resource", ["a", "a/b", "a/b/c/d", "a/b/*", "a/b/c.d", UUID(int=0)])
def test_an_invalid_resource_id_is_refused(resource: str | UUID) -> None:
    with pytest.raises(DataError):
        ResourceLayout().sequence_of(resource)
