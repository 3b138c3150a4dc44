"""The published language as JSON Schema (2020-12) and as an AsyncAPI 3.0 document.

Both are generated from the structs and the subjects, so they cannot differ from the code. The
module is pure: the caller writes the files.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, Final, NamedTuple, cast, get_args

import msgspec

from events.dead_letter import DeadLetterRecord, Stage
from events.intake import INTAKE_TYPES, LISTING_TYPE, ListingPart, Reply
from events.log import LogEvent, OutcomeName
from events.manifest import Manifest, Policy, ProviderConfigRef
from events.provider_config import ProviderConfigSpec
from events.reference import ReferenceSpec
from events.subjects import REPLY_HEADER, SILENCE

VERSION: Final = "1.0.0"
"""Version of the published language. Increase it with every change that a reader can notice."""

JSON_SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TITLE: Final = "Event-sourced reconciler"
_ONE_RESOURCE: Final = "{namespace}.{kind}.{name}"
_TOKEN: Final = "One token of a subject: 1 to 63 of the characters A-Z a-z 0-9 _ -."  # noqa: S105

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return one JSON Schema document with every struct and every CloudEvent in its ``$defs``."""
    return {
        "$schema": JSON_SCHEMA_DIALECT,
        "$id": "urn:reconciler:published-language",
        "title": f"{_TITLE}: published language {VERSION}",
        "$defs": _definitions("#/$defs/"),
    }


def asyncapi() -> Schema:
    """Return the AsyncAPI 3.0 document, from the perspective of Reconciler.

    ``receive``: messages from other services. ``send``: messages from Reconciler.
    """
    channels = {channel.name: _channel(channel) for channel in _channels()}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": _TITLE, "version": VERSION, "license": {"name": "Apache-2.0"}},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": {name: _operation(name, channel) for name, channel in channels.items()},
        "components": {
            "messages": {name: _message(name) for name in _message_names()},
            "schemas": _definitions("#/components/schemas/"),
        },
    }


# --- schemas

_SCHEMA_TYPES: Final[tuple[object, ...]] = (
    Reply,
    DeadLetterRecord,
    LogEvent,
    Manifest,
    Policy,
    ProviderConfigRef,
    ProviderConfigSpec,
    ReferenceSpec,
    ListingPart,
    *INTAKE_TYPES.values(),
)


def _definitions(prefix: str) -> Schema:
    _, structs = msgspec.json.schema_components(
        cast("Any", _SCHEMA_TYPES), schema_hook=_schema_of, ref_template=prefix + "{name}"
    )
    envelopes = {
        _envelope_name(name): _cloud_event(name, {"$ref": f"{prefix}{struct.__name__}"})
        for name, struct in INTAKE_TYPES.items()
    }
    parts = [{"$ref": prefix + struct.__name__} for struct in _members(ListingPart)]
    envelopes[_envelope_name(LISTING_TYPE)] = _cloud_event(LISTING_TYPE, {"anyOf": parts})
    definitions: Schema = _tidy(msgspec.to_builtins({**structs, **envelopes}))
    _require_event_constants(definitions["LogEvent"])
    return dict(sorted(definitions.items()))


def _schema_of(kind: type) -> Schema:
    if kind is object:
        return {"description": "Any JSON value. null means that the value is missing."}
    raise NotImplementedError(f"no schema for {kind}")


def _cloud_event(event_type: str, data: Schema) -> Schema:
    return {
        "title": _envelope_name(event_type),
        "description": f"A CloudEvents 1.0 event in structured JSON, with type {event_type}.",
        "type": "object",
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "minLength": 1},
            "source": {"type": "string", "minLength": 1},
            "type": {"const": event_type},
            "subject": {"type": ["string", "null"]},
            "time": {"type": ["string", "null"], "format": "date-time"},
            "data": data,
        },
        "required": ["specversion", "id", "source", "type", "data"],
    }


def _require_event_constants(schema: Schema) -> None:
    """Add the constants of the log's envelope, which its struct does not enforce."""
    schema["properties"]["specversion"]["const"] = "1.0"
    schema["properties"]["time"]["format"] = "date-time"
    schema["properties"]["type"]["pattern"] = r"^reconciler\.resource\.[A-Za-z]+$"


def _tidy(schema: Any) -> Any:
    """Return a schema that contains JSON values only.

    It omits OpenAPI's ``discriminator``, which neither format defines (tags are constants anyway),
    and the indentation of descriptions.
    """
    if isinstance(schema, dict):
        return {
            key: cleandoc(value)
            if key == "description" and isinstance(value, str)
            else _tidy(value)
            for key, value in cast("Schema", schema).items()
            if not (key == "discriminator" and isinstance(value, dict))
        }
    if isinstance(schema, (list, tuple)):
        return [_tidy(each) for each in cast("list[Any]", schema)]
    return schema


def _members(union: Any) -> tuple[type, ...]:
    return cast("tuple[type, ...]", union.__args__)


def _envelope_name(event_type: str) -> str:
    """Convert ``reconciler.desired.Declared`` to ``DeclaredCloudEvent``."""
    *_, what, name = event_type.split(".")
    return f"{what.capitalize() if name == 'Part' else ''}{name}CloudEvent"


# --- AsyncAPI


class _Channel(NamedTuple):
    name: str
    address: str
    summary: str
    messages: list[str]


def _channels() -> list[_Channel]:
    """Return name, address, summary and messages of every public channel."""
    intake: dict[str, list[str]] = {}
    for event_type in INTAKE_TYPES:
        intake.setdefault(event_type.split(".")[1], []).append(_envelope_name(event_type))
    intake["desired"].append("Manifest")
    return [
        _Channel(
            "desired",
            f"rec.desired.{_ONE_RESOURCE}",
            (
                "Desired state of one resource. The decider replies to the inbox in the "
                f"{REPLY_HEADER} header."
            ),
            intake["desired"],
        ),
        _Channel(
            "finalizer",
            f"rec.finalizer.{_ONE_RESOURCE}",
            "A service sets a finalizer on a resource, or removes it.",
            intake["finalizer"],
        ),
        _Channel(
            "approval",
            f"rec.approval.{_ONE_RESOURCE}",
            (
                "An operator approves or rejects an action of a held resource, or forces its "
                "release."
            ),
            intake["approval"],
        ),
        _Channel(
            "observed",
            f"rec.observed.{_ONE_RESOURCE}",
            (
                "Observed state of one resource, or proof that its object is missing, from an "
                "observer."
            ),
            intake["observed"],
        ),
        _Channel(
            "result",
            f"rec.result.{_ONE_RESOURCE}",
            "Result of one attempt of an action, from a worker.",
            intake["result"],
        ),
        _Channel(
            "listing",
            "listing.{providerConfig}.{kind}.{listingId}",
            (
                "A complete listing of one scope, from an observer: its start, its items and its "
                "end."
            ),
            [_envelope_name(LISTING_TYPE)],
        ),
        _Channel(
            "reply",
            "{replyTo}",
            f"The decider's reply, in the inbox that the {REPLY_HEADER} header named.",
            ["Reply"],
        ),
        _Channel(
            "outcome",
            f"log.{_ONE_RESOURCE}.outcome.{{outcome}}",
            "Outcome of one generation of a resource. The event log keeps it permanently.",
            ["LogEvent"],
        ),
        _Channel(
            "log",
            f"log.{_ONE_RESOURCE}.{{class}}",
            "The event log (LOG_1 stream, kept permanently).",
            ["LogEvent"],
        ),
        _Channel(
            "rejection",
            f"rejection.{_ONE_RESOURCE}",
            (
                "A refused declaration (REJECTIONS stream, kept for 30 days). The log does not "
                "contain it."
            ),
            ["LogEvent"],
        ),
        _Channel(
            "action",
            f"log.{_ONE_RESOURCE}.action.{{providerConfig}}",
            "Log events that instruct the workers to call an API.",
            ["LogEvent"],
        ),
        _Channel(
            "deadletter",
            "deadletter.{stage}.{namespace}.{size}",
            (
                "A dead letter: a message that could not be processed, and the reason "
                "(DEADLETTERS stream, kept for 90 days)."
            ),
            ["DeadLetterRecord"],
        ),
    ]


_WITH_REPLY: Final = frozenset({"desired", "finalizer", "approval"})
_SENT: Final = frozenset({"reply", "outcome", "rejection", "log", "action", "deadletter"})
_PARAMETERS: Final[dict[str, Schema]] = {
    "replyTo": {"description": "An inbox: a subject that starts with _INBOX."},
    "class": {"enum": ["fact", SILENCE], "description": "Class of the event."},
    "outcome": {"enum": list(get_args(OutcomeName)), "description": "Outcome of the generation."},
    "size": {"description": "Upper limit on the message's size in bytes, a power of two."},
    "stage": {"enum": list(get_args(Stage)), "description": "Stage that rejected the message."},
}


def _channel(channel: _Channel) -> Schema:
    names = [part.split("}")[0] for part in channel.address.split("{")[1:]]
    return {
        "address": channel.address,
        "summary": channel.summary,
        "parameters": {name: _PARAMETERS.get(name, {"description": _TOKEN}) for name in names},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in channel.messages},
    }


def _operation(name: str, channel: Schema) -> Schema:
    operation: Schema = {
        "action": "send" if name in _SENT else "receive",
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": channel["summary"],
        "messages": [
            {"$ref": f"#/channels/{name}/messages/{each}"} for each in channel["messages"]
        ],
    }
    if name in _WITH_REPLY:
        operation["reply"] = {
            "address": {"location": f"$message.header#/{REPLY_HEADER}"},
            "channel": {"$ref": "#/channels/reply"},
        }
    return operation


def _message_names() -> list[str]:
    return sorted({name for channel in _channels() for name in channel.messages})


def _message(name: str) -> Schema:
    is_event = name == "LogEvent" or name.endswith("CloudEvent")
    message: Schema = {
        "name": name,
        "contentType": "application/cloudevents+json" if is_event else "application/json",
        "payload": {"$ref": f"#/components/schemas/{name}"},
    }
    if any(name in channel.messages for channel in _channels() if channel.name in _WITH_REPLY):
        message["headers"] = _HEADERS
    return message


_HEADERS: Final[Schema] = {
    "type": "object",
    "properties": {
        "Nats-Msg-Id": {
            "type": "string",
            "description": "Identifies a repeated message. A resource accepts it once.",
        },
        REPLY_HEADER: {
            "type": "string",
            "pattern": r"^_INBOX[^*>\s]*$",
            "description": "Inbox for the decider's reply.",
        },
    },
}
