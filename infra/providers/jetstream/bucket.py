"""The ``Bucket`` kind: a key-value bucket on a JetStream server, which stores it as a stream."""

from __future__ import annotations

import re
from typing import Annotated

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
from infra.providers.jetstream.subjects import BUCKET_PREFIX, describe_reserved_stream
from reconciler.provider.kind import Kind

LIMITS = {"history": "values per key", "ttlSeconds": "seconds", "maxBytes": "bytes"}
MAX_HISTORY = 64

_NAME = re.compile(r"[A-Za-z0-9_-]{1,252}")


class BucketFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A key-value bucket in NATS JetStream."""

    description: Annotated[str, msgspec.Meta(max_length=4_096, description="Free text.")] = ""
    history: Annotated[
        int,
        msgspec.Meta(ge=1, le=MAX_HISTORY, description="Number of values to keep for each key."),
    ] = 1
    ttl_seconds: Annotated[
        Seconds, msgspec.Meta(description="Seconds after which a value is deleted; 0 means never.")
    ] = 0.0
    max_bytes: Annotated[
        Limit,
        msgspec.Meta(description="Maximum size of the bucket, in bytes; -1 or 0 means no limit."),
    ] = UNLIMITED
    max_value_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=UNLIMITED,
            le=2**31 - 1,
            description="Maximum size of one value, in bytes; -1 or 0 means no limit.",
        ),
    ] = UNLIMITED
    storage: Annotated[Storage, msgspec.Meta(description="Storage type of the values.")] = "file"
    replicas: Annotated[
        Replicas, msgspec.Meta(description="Replicas of the bucket in a cluster.")
    ] = 1
    compression: Annotated[
        Compression, msgspec.Meta(description="Compression of the stored values.")
    ] = "none"


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a bucket's fields, with the server's defaults."""
    return {
        "description": "",
        "history": 1,
        "storage": "file",
        "replicas": 1,
        "compression": "none",
        **fields,
        "ttlSeconds": to_milliseconds("ttlSeconds", fields.get("ttlSeconds", 0.0)),
        "maxBytes": limit(fields.get("maxBytes")),
        "maxValueBytes": limit(fields.get("maxValueBytes")),
    }


def name_problem(name: str) -> str | None:
    """Describe what is wrong with a bucket's name; None if it is valid."""
    if _NAME.fullmatch(name) is None:
        return "use 1 to 252 of the characters A-Z a-z 0-9 _ -"
    return describe_reserved_stream(_stream_of(name), [f"$KV.{name}.>"]) or None


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe the values that an update or a deletion would lose; empty if none."""
    if not has_data(observed):
        return ""
    if fields is None:
        return f"all values of bucket {observed.name}"
    losses = find_lowered_limits(fields, observed, LIMITS)
    return f"values of bucket {observed.name}: {', '.join(losses)}" if losses else ""


def _config_of(name: str, fields: Fields) -> Config:
    """Return the stream configuration that bucket clients expect."""
    ttl = fields["ttlSeconds"]
    return {
        "subjects": [f"$KV.{name}.>"],
        "description": fields["description"],
        "max_msgs_per_subject": fields["history"],
        "max_age": to_nanoseconds(ttl),
        "max_bytes": fields["maxBytes"],
        "max_msg_size": fields["maxValueBytes"],
        "storage": fields["storage"],
        "num_replicas": fields["replicas"],
        "compression": fields["compression"],
        "duplicate_window": to_nanoseconds(duplicate_window(None, ttl)),
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }


def _fields_of(config: Config) -> Fields:
    return normalize(
        {
            "description": config.get("description", ""),
            "history": config.get("max_msgs_per_subject", 1),
            "ttlSeconds": to_seconds(config.get("max_age", 0)),
            "maxBytes": config.get("max_bytes"),
            "maxValueBytes": config.get("max_msg_size"),
            "storage": config["storage"],
            "replicas": config["num_replicas"],
            "compression": config.get("compression", "none"),
        }
    )


def _stream_of(name: str) -> str:
    return BUCKET_PREFIX + name


def _name_of(stream: str) -> str | None:
    return stream.removeprefix(BUCKET_PREFIX) if stream.startswith(BUCKET_PREFIX) else None


class _BucketsProvider(StreamsProvider):
    noun = "bucket"
    mapping = StreamMapping(name_problem, _stream_of, _name_of, _config_of, _fields_of)


BUCKET = Kind(
    name="Bucket",
    api_version="jetstream/v1",
    provider="jetstream",
    schema=BucketFields,
    capabilities=CAPABILITIES,
    connect=_BucketsProvider,
    normalize=normalize,
    name_problem=name_problem,
    outputs=StreamOutputs,
    ready=ready,
    keeps_readiness=True,
    immutable=frozenset({"storage"}),
    describe_data_loss=describe_data_loss,
)
"""The ``Bucket`` kind."""
