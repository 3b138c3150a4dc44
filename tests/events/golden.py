"""Golden events: what each release stored, byte for byte, and how a new one is written down.

``python -m tests.events.golden RELEASE`` writes a file for every class of event of which no golden
file shows all fields, and touches none that is there: what is stored is stored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from events.envelope import encode_log
from events.log import LogEvent, ResourceEvent, event_id, event_type
from events.names import ResourceKey

FOLDER = Path(__file__).parent / "golden"
DIGESTS = FOLDER / "digests.txt"
CLASSES: tuple[type[msgspec.Struct], ...] = get_args(ResourceEvent)
KEY = ResourceKey("default", "Shape", "foo")
NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)


def files() -> list[Path]:
    """Every golden file, oldest release first."""
    return sorted(FOLDER.glob("*/*.json"))


def digest(path: Path) -> str:
    """One line that changes with the file."""
    name = path.relative_to(FOLDER).as_posix()
    return f"{blake2b(path.read_bytes(), digest_size=8).hexdigest()}  {name}"


def fields(data: Any, prefix: str = "") -> Iterator[str]:
    """Name every field of a value, at every depth that has fields of its own."""
    if isinstance(data, dict):
        for name, value in data.items():  # pyright: ignore[reportUnknownVariableType]
            yield f"{prefix}{name}"
            yield from fields(value, f"{prefix}{name}.")
    elif isinstance(data, list):
        for value in data:  # pyright: ignore[reportUnknownVariableType]
            yield from fields(value, prefix)


def sample_event(kind: type[msgspec.Struct]) -> LogEvent:
    """Make an event of a class in which every field is set to something."""
    data = msgspec.convert(_sample(inspect.type_info(kind)), kind)
    return LogEvent(
        id=event_id(KEY, 7),
        source="reconciler",
        type=event_type(data),  # pyright: ignore[reportArgumentType]
        subject=str(KEY),
        time=NOON,
        resourceversion=7,
        data=data,  # pyright: ignore[reportArgumentType]
        causeid="message-1",
        causeposition=41,
        actor="team-a",
    )


def _sample(info: inspect.Type) -> Any:
    """Make a value of a type that no field has by default, as JSON shows it."""
    match info:
        case inspect.StructType():
            made = {field.encode_name: _sample(field.type) for field in info.fields}
            return made if info.tag is None else {str(info.tag_field): info.tag, **made}
        case inspect.DictType():
            return {"some/name": _sample(info.value_type)}
        case inspect.VarTupleType() | inspect.ListType():
            return [_sample(info.item_type)]
        case inspect.UnionType():
            return _sample(next(t for t in info.types if not isinstance(t, inspect.NoneType)))
        case inspect.LiteralType():
            return info.values[-1]
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


def shown() -> dict[str, set[str]]:
    """Give the fields that golden files show, by class."""
    found: dict[str, set[str]] = {}
    for path in files():
        data = msgspec.json.decode(path.read_bytes())["data"]
        found.setdefault(path.stem, set()).update(fields(data))
    return found


def wanted(kind: type[msgspec.Struct]) -> set[str]:
    """Give the fields that a class has now."""
    return set(fields(msgspec.json.decode(encode_log(sample_event(kind)))["data"]))


def missing() -> list[type[msgspec.Struct]]:
    """Give the classes of which no golden file shows all fields."""
    known = shown()
    return [kind for kind in CLASSES if wanted(kind) - known.get(kind.__name__, set())]


def main(release: str) -> None:
    """Write what is missing, for a release that is about to be made."""
    folder = FOLDER / release
    folder.mkdir(parents=True, exist_ok=True)
    for kind in missing():
        with (folder / f"{kind.__name__}.json").open("xb") as file:
            file.write(encode_log(sample_event(kind)))
    DIGESTS.write_text("".join(f"{digest(path)}\n" for path in files()))


if __name__ == "__main__":
    main(sys.argv[1])
