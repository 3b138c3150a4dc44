"""Golden messages: the exact bytes in a log of this format, and how to record them.

``python -m tests.events.golden`` writes a file for every message class whose fields do not all
appear in golden files. It does not change files of the same format, and removes files of older
formats.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect

from events.dead_letter import DeadLetterHandled, DeadLetterRecord, Discarded
from events.envelope import (
    decode_intake,
    decode_listing_part,
    decode_log,
    encode_intake,
    encode_listing_part,
    encode_log,
    to_builtins,
)
from events.intake import INTAKE_TYPE_NAMES, INTAKE_TYPES, ListingPart, Reply
from events.log import LogEvent, ResourceEvent, event_id, event_type
from events.names import ResourceKey
from infra.bus.streams import LOG_FORMAT

FOLDER = Path(__file__).parent / "golden"
DIGESTS = FOLDER / "digests.txt"
KEY = ResourceKey("default", "Shape", "foo")
NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)


Class = type[msgspec.Struct]


class Family(NamedTuple):
    """Messages with the same encoding; ``path`` leads to the class's own fields."""

    classes: tuple[Class, ...]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, Class], Any]
    path: str = ""


def _logged(data: Any) -> bytes:
    event = LogEvent(
        id=event_id(KEY, 7),
        source="reconciler",
        type=event_type(data),
        subject=str(KEY),
        time=NOON,
        resourceversion=7,
        data=data,
        causationid="message-1",
        causationposition=41,
        actor="team-a",
    )
    return encode_log(event)


def _as_json(thing: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(to_builtins(thing)))


def _from_log(payload: bytes, _kind: Class) -> Any:
    return _as_json(decode_log(payload))


def _to_intake(data: Any) -> bytes:
    return encode_intake("message-1", "team-a", data, time=NOON)


def _from_intake(payload: bytes, kind: Class) -> Any:
    what: Any = INTAKE_TYPE_NAMES[kind].split(".")[1]  # pyright: ignore[reportArgumentType]
    return _as_json(decode_intake(payload, expected=what, fallback_id="-").data)


def _to_listing(data: Any) -> bytes:
    return encode_listing_part("message-1", "team-a", data, time=NOON)


def _from_listing(payload: bytes, _kind: Class) -> Any:
    return _as_json(decode_listing_part(payload))


def _plain(payload: bytes, kind: Class) -> Any:
    return _as_json(msgspec.json.decode(payload, type=kind))


PLAIN = (Reply, DeadLetterRecord, DeadLetterHandled, Discarded)
FAMILIES = {
    "log": Family(get_args(ResourceEvent), _logged, _from_log, "data"),
    "intake": Family(tuple(INTAKE_TYPES.values()), _to_intake, _from_intake, "data"),
    "listing": Family(get_args(ListingPart), _to_listing, _from_listing, "data"),
    "plain": Family(PLAIN, msgspec.json.encode, _plain),
}
"""Families by folder name."""


def files() -> list[Path]:
    """Return every golden file."""
    return sorted(FOLDER.glob("*/*/*.json"))


def class_name(path: Path) -> str:
    """Return the class name of a golden file; fields added later are in another file."""
    return path.stem.partition("-")[0]


def own_part(path: Path, content: Any) -> Any:
    """Return the part of a golden file's JSON that belongs to its class."""
    family = FAMILIES[path.parent.name]
    return content[family.path] if family.path else content


def decoded(path: Path) -> Any:
    """Read a golden file as the product does, and return it as JSON would show it."""
    family = FAMILIES[path.parent.name]
    kind = next(each for each in family.classes if each.__name__ == class_name(path))
    return family.decode(path.read_bytes(), kind)


def digest(path: Path) -> str:
    """Return a line that changes with the file."""
    name = path.relative_to(FOLDER).as_posix()
    return f"{blake2b(path.read_bytes(), digest_size=8).hexdigest()}  {name}"


def fields(data: Any, prefix: str = "") -> Iterator[str]:
    """Return the paths of all fields of a value, including nested ones."""
    if isinstance(data, dict):
        for name, value in data.items():  # pyright: ignore[reportUnknownVariableType]
            yield f"{prefix}{name}"
            yield from fields(value, f"{prefix}{name}.")
    elif isinstance(data, list):
        for value in data:  # pyright: ignore[reportUnknownVariableType]
            yield from fields(value, prefix)


def _sample(info: inspect.Type) -> Any:
    """Return a JSON value of a type that no field has by default."""
    match info:
        case inspect.Metadata():
            return _sample(info.type)
        case inspect.StructType():
            sample = {field.encode_name: _sample(field.type) for field in info.fields}
            return sample if info.tag is None else {str(info.tag_field): info.tag, **sample}
        case inspect.DictType():
            return {"some/name": _sample(info.value_type)}
        case inspect.VarTupleType() | inspect.ListType():
            return [_sample(info.item_type)]
        case inspect.UnionType():
            return _sample(next(t for t in info.types if not isinstance(t, inspect.NoneType)))
        case inspect.LiteralType():
            return info.values[-1]
        case inspect.EnumType():
            return list(info.cls)[-1].value
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 3
        case inspect.FloatType():
            return 1.5
        case inspect.DateTimeType():
            return NOON.isoformat()
        case _:
            return "text"


def current_fields(family: Family, kind: Class) -> set[str]:
    """Return the fields that a class has now."""
    content = msgspec.json.decode(_sample_of(family, kind))
    return set(fields(content[family.path] if family.path else content))


def missing() -> list[tuple[str, Class]]:
    """Return the classes, with their families, whose fields do not all appear in golden files."""
    fields_by_class: dict[tuple[str, str], set[str]] = {}
    for path in files():
        content = own_part(path, msgspec.json.decode(path.read_bytes()))
        fields_by_class.setdefault((path.parent.name, class_name(path)), set()).update(
            fields(content)
        )
    return [
        (name, kind)
        for name, family in FAMILIES.items()
        for kind in family.classes
        if current_fields(family, kind) - fields_by_class.get((name, kind.__name__), set())
        or (name, kind.__name__) not in fields_by_class
    ]


def _sample_of(family: Family, kind: Class) -> bytes:
    """Return a message of a class in which every field is set."""
    return family.encode(msgspec.convert(_sample(inspect.type_info(kind)), kind))


def main() -> None:
    """Write missing files for the log format, and remove files of other formats."""
    for other_folder in {each for each in FOLDER.iterdir() if each.is_dir()} - {
        FOLDER / str(LOG_FORMAT)
    }:
        shutil.rmtree(other_folder)
    for name, kind in missing():
        folder = FOLDER / str(LOG_FORMAT) / name
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + sum(class_name(each) == kind.__name__ for each in folder.glob("*.json"))
        suffix = f"-{number}" if number > 1 else ""
        with (folder / f"{kind.__name__}{suffix}.json").open("xb") as file:
            file.write(_sample_of(FAMILIES[name], kind))
    DIGESTS.write_text("".join(f"{digest(path)}\n" for path in files()))


if __name__ == "__main__":
    main()
