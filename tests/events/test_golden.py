"""The code reads everything that a log of its format contains: the golden files are examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from events.envelope import InvalidMessageError, decode_log
from infra.bus.streams import LOG_FORMAT
from tests.events import golden

HOW = (
    "if the code cannot read what was stored before, raise LOG_FORMAT, once for each issue (ADR "
    "0020), and remove its golden files; then run `python -m tests.events.golden`"
)


def is_contained(part: Any, whole: Any) -> bool:
    """Return whether one JSON value is contained in another, which may have more fields."""
    if isinstance(part, dict) and isinstance(whole, dict):
        mine, others = cast("dict[str, Any]", part), cast("dict[str, Any]", whole)
        return all(name in others and is_contained(mine[name], others[name]) for name in mine)
    if isinstance(part, list) and isinstance(whole, list):
        part_items, whole_items = cast("list[Any]", part), cast("list[Any]", whole)
        return len(part_items) == len(whole_items) and all(
            map(is_contained, part_items, whole_items)
        )
    return part == whole


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", golden.files(), ids=_name)
def test_a_stored_message_is_read_with_all_fields(path: Path) -> None:
    stored = msgspec.json.decode(path.read_bytes())
    decoded = golden.decoded(path)
    expected = stored if path.parent.name == "log" else golden.own_part(path, stored)
    assert is_contained(expected, decoded), f"a field was lost, or has a different meaning: {HOW}"


def test_the_golden_files_have_the_log_format() -> None:
    formats = {path.parent.parent.name for path in golden.files()}
    assert formats == {str(LOG_FORMAT)}, HOW


def test_every_field_of_every_class_is_in_a_golden_file() -> None:
    unseen = {f"{family}/{kind.__name__}" for family, kind in golden.missing()}
    assert not unseen, f"no golden file shows all of {sorted(unseen)}: {HOW}"


def test_no_golden_file_was_changed_or_removed() -> None:
    recorded = golden.DIGESTS.read_text().splitlines()
    assert [golden.digest(path) for path in golden.files()] == recorded, HOW


def test_an_unknown_event_is_refused_and_named() -> None:
    path = next(each for each in golden.files() if each.parent.name == "log")
    unknown = msgspec.json.decode(path.read_bytes())
    unknown["data"]["event"] = "Teleported"
    with pytest.raises(InvalidMessageError, match="Teleported"):
        decode_log(msgspec.json.encode(unknown))
