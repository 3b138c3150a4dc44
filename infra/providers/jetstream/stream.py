"""The ``Stream`` kind: a stream on a JetStream server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.jetstream.api import Config, to_nanoseconds, to_seconds
from infra.providers.jetstream.streams import (
    CAPABILITIES,
    UNLIMITED,
    Compression,
    Limit,
    Replicas,
    Seconds,
    Storage,
    StreamMapping,
    StreamOutputs,
    StreamsProvider,
    duplicate_window,
    find_lowered_limits,
    has_data,
    limit,
    ready,
    to_milliseconds,
)
from infra.providers.jetstream.subjects import (
    BUCKET_PREFIX,
    MAX_SUBJECTS,
    check_subjects,
    overlap,
)
from reconciler.provider.kind import Kind

NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
"""Valid names of streams and consumers."""

OTHER_PREFIXES = (BUCKET_PREFIX, "OBJ_")
"""Prefixes of streams that are buckets and object stores."""

LIMITS = {
    "maxAgeSeconds": "seconds",
    "maxBytes": "bytes",
    "maxMessages": "messages",
    "maxMessagesPerSubject": "messages",
}
_WORK_QUEUE = "workqueue"


class StreamFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A stream in NATS JetStream."""

    subjects: Annotated[
        list[str],
        msgspec.Meta(
            min_length=1,
            max_length=MAX_SUBJECTS,
            description="Subjects that the stream stores, in any order.",
        ),
    ]
    description: Annotated[str, msgspec.Meta(max_length=4_096, description="Free text.")] = ""
    storage: Annotated[Storage, msgspec.Meta(description="Storage type of the messages.")] = "file"
    retention: Annotated[
        Literal["limits", "interest", "workqueue"],
        msgspec.Meta(
            description="limits: keep messages within the limits. interest: until all "
            "consumers have acknowledged them. workqueue: until one consumer has."
            " A change to or from workqueue replaces the stream."
        ),
    ] = "limits"
    is_work_queue: Annotated[
        bool | None, msgspec.Meta(description="Derived from retention. Do not declare it.")
    ] = None
    replicas: Annotated[
        Replicas, msgspec.Meta(description="Replicas of the stream in a cluster.")
    ] = 1
    max_age_seconds: Annotated[
        Seconds,
        msgspec.Meta(description="Maximum age of a message, in seconds; 0 means no limit."),
    ] = 0.0
    max_bytes: Annotated[
        Limit,
        msgspec.Meta(description="Maximum size of the stream, in bytes; -1 or 0 means no limit."),
    ] = UNLIMITED
    max_messages: Annotated[
        Limit, msgspec.Meta(description="Maximum number of messages; -1 or 0 means no limit.")
    ] = UNLIMITED
    max_messages_per_subject: Annotated[
        Limit,
        msgspec.Meta(
            description="Maximum number of messages for each subject; -1 or 0 means no limit."
        ),
    ] = UNLIMITED
    max_message_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=UNLIMITED,
            le=2**31 - 1,
            description="Maximum size of one message, in bytes; -1 or 0 means no limit.",
        ),
    ] = UNLIMITED
    discard: Annotated[
        Literal["old", "new"],
        msgspec.Meta(
            description="Policy when a limit is reached. old: the server deletes the oldest "
            "messages. new: the server refuses new messages."
        ),
    ] = "old"
    duplicate_window_seconds: Annotated[
        Seconds | None,
        msgspec.Meta(
            description="Seconds during which the server detects a repeated message id. Default: "
            "120, or maxAgeSeconds if that is less."
        ),
    ] = None
    compression: Annotated[
        Compression, msgspec.Meta(description="Compression of the stored messages.")
    ] = "none"
    allow_direct: Annotated[
        bool, msgspec.Meta(description="Whether any replica may serve direct reads.")
    ] = False

    def __post_init__(self) -> None:
        check_subjects(self.subjects)
        if self.is_work_queue not in (None, self.retention == _WORK_QUEUE):
            raise ValueError(
                "isWorkQueue: must not be declared; omit it, because retention determines it"
            )
        window = self.duplicate_window_seconds or 0.0
        if self.max_age_seconds and window > self.max_age_seconds:
            raise ValueError("duplicateWindowSeconds: must not be greater than maxAgeSeconds")


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a stream's fields, with the server's defaults."""
    window = fields.get("duplicateWindowSeconds")
    max_age = to_milliseconds("maxAgeSeconds", fields.get("maxAgeSeconds", 0.0))
    retention = fields.get("retention", "limits")
    return {
        "description": "",
        "storage": "file",
        "replicas": 1,
        "discard": "old",
        "compression": "none",
        "allowDirect": False,
        **fields,
        "subjects": sorted(set(fields.get("subjects", []))),
        "retention": retention,
        "isWorkQueue": retention == _WORK_QUEUE,
        "maxAgeSeconds": max_age,
        "maxBytes": limit(fields.get("maxBytes")),
        "maxMessages": limit(fields.get("maxMessages")),
        "maxMessagesPerSubject": limit(fields.get("maxMessagesPerSubject")),
        "maxMessageBytes": limit(fields.get("maxMessageBytes")),
        "duplicateWindowSeconds": duplicate_window(
            to_milliseconds("duplicateWindowSeconds", window) if window else window, max_age
        ),
    }


def name_problem(name: str) -> str | None:
    """Describe what is wrong with a stream's name; None if it is valid."""
    if name.startswith(OTHER_PREFIXES):
        return (
            "names that start with KV_ or OBJ_ belong to buckets and object stores; declare a "
            "Bucket for a bucket"
        )
    if NAME.fullmatch(name) is None or not name.isprintable():
        return r"use 1 to 255 characters, without spaces or any of . * > / \ "
    return None


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe the messages that an update or a deletion would lose; empty if none."""
    if not has_data(observed):
        return ""
    if fields is None:
        return f"all messages of stream {observed.name}"
    losses = find_lowered_limits(fields, observed, LIMITS)
    if fields.get("retention") == "interest" and observed.fields.get("retention") != "interest":
        losses.append(f"retention from {observed.fields.get('retention')} to interest")
    return f"messages of stream {observed.name}: {', '.join(losses)}" if losses else ""


def _config_of(_name: str, fields: Fields) -> Config:
    return {
        "subjects": fields["subjects"],
        "description": fields["description"],
        "storage": fields["storage"],
        "retention": fields["retention"],
        "num_replicas": fields["replicas"],
        "max_age": to_nanoseconds(fields["maxAgeSeconds"]),
        "max_bytes": fields["maxBytes"],
        "max_msgs": fields["maxMessages"],
        "max_msgs_per_subject": fields["maxMessagesPerSubject"],
        "max_msg_size": fields["maxMessageBytes"],
        "discard": fields["discard"],
        "duplicate_window": to_nanoseconds(fields["duplicateWindowSeconds"]),
        "compression": fields["compression"],
        "allow_direct": fields["allowDirect"],
    }


def _fields_of(config: Config) -> Fields:
    return normalize(
        {
            "subjects": config.get("subjects") or [],
            "description": config.get("description", ""),
            "storage": config["storage"],
            "retention": config["retention"],
            "replicas": config["num_replicas"],
            "maxAgeSeconds": to_seconds(config.get("max_age", 0)),
            "maxBytes": config.get("max_bytes"),
            "maxMessages": config.get("max_msgs"),
            "maxMessagesPerSubject": config.get("max_msgs_per_subject"),
            "maxMessageBytes": config.get("max_msg_size"),
            "discard": config["discard"],
            "duplicateWindowSeconds": to_seconds(config.get("duplicate_window", 0)),
            "compression": config.get("compression", "none"),
            "allowDirect": config.get("allow_direct", False),
        }
    )


def find_claims(_external_name: str, fields: Fields) -> Sequence[str]:
    """Return the subjects of a stream as paths, each up to its first wildcard."""
    claims: list[str] = []
    for subject in fields.get("subjects") or ():
        tokens = ["subject", *subject.split(".")]
        is_wide = [each in ("*", ">") for each in tokens]
        # What is below an exact subject is another one, so its path has an end.
        tokens = tokens[: is_wide.index(True)] if any(is_wide) else [*tokens, "."]
        claims.append("/".join(tokens))
    return claims


def _same_name(name: str) -> str:
    return name


def _name_of(stream: str) -> str | None:
    return None if stream.startswith(OTHER_PREFIXES) else stream


class _StreamsProvider(StreamsProvider):
    noun = "stream"
    mapping = StreamMapping(name_problem, _same_name, _name_of, _config_of, _fields_of)


STREAM = Kind(
    name="Stream",
    api_version="jetstream/v1",
    provider="jetstream",
    schema=StreamFields,
    capabilities=CAPABILITIES,
    connect=_StreamsProvider,
    normalize=normalize,
    name_problem=name_problem,
    outputs=StreamOutputs,
    ready=ready,
    unique={"subjects": overlap},
    find_claims=find_claims,
    keeps_readiness=True,
    immutable=frozenset({"storage", "isWorkQueue"}),
    describe_data_loss=describe_data_loss,
)
"""The ``Stream`` kind."""
