"""Create streams and consumers, and update them in place.

Configurations are the server's JSON objects, because nats-py's classes drop unknown fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from nats.aio.client import Client

from infra.jetstream.connection import api_request
from infra.jetstream.errors import (
    BusRefusedError,
    IncompatibleStreamError,
    NotFoundOnBusError,
    StreamExistsError,
    StreamFullError,
)

Config = Mapping[str, object]

_NAME_IN_USE: Final = frozenset({10058, 10148, 10013})  # another client has just created it
_EMPTY: Final[Config] = {}
_REPLICAS: Final = "num_replicas"
_PAUSE_UNTIL: Final = "pause_until"
_NEW_NAME: Final = (
    " Restore its original configuration, or copy its messages to a new stream with another name"
)
# Values that the server reports for a limit that was set to 0 or omitted.
_UNSET: Final[tuple[object, ...]] = (None, 0, -1, "", False)


async def ensure_stream(
    nc: Client, config: Config, *, remedy: str = _NEW_NAME, must_be_new: bool = False
) -> Literal["created", "updated", "unchanged"]:
    """Create or update the stream `config["name"]`. Fields missing from `config` stay unchanged.

    Args:
        remedy: end of the error message about a stream that cannot be changed in place.
        must_be_new: raise an error instead of updating an existing stream.

    Raises:
        StreamExistsError: the stream exists, and `must_be_new` is set.
        IncompatibleStreamError: the stream exists and cannot be changed in place. The message
            contains the fields, both values and the remedy.
        BusRefusedError: the server rejects the configuration.
        BusUnavailableError: no response.
    """
    name = str(config["name"])
    existing = await _existing_config(nc, f"STREAM.INFO.{name}")
    if existing is None:
        try:
            await api_request(nc, f"STREAM.CREATE.{name}", dict(config))
        except StreamFullError as error:
            limit = config.get("max_bytes")
            reserved = f" The server reserves its max_bytes ({limit})." if limit != -1 else ""
            raise StreamFullError(
                f"stream {name} cannot be created: {error}.{reserved} Give JetStream a larger disk "
                "or account, or a higher max_file_store"
            ) from error
        except BusRefusedError as error:
            if error.err_code not in _NAME_IN_USE:
                raise
            existing = await _existing_config(nc, f"STREAM.INFO.{name}") or {}
        else:
            return "created"
    if must_be_new:
        raise StreamExistsError(f"stream {name} already exists")
    config = with_raised_limit(config, existing)
    fields_to_change = differences(config, existing)
    if not fields_to_change:
        return "unchanged"
    try:
        await api_request(nc, f"STREAM.UPDATE.{name}", {**existing, **config})
    except BusRefusedError as error:
        if set(fields_to_change) == {_REPLICAS}:
            raise BusRefusedError(
                f"stream {name} cannot have {config[_REPLICAS]} replicas ({error}); use at most as "
                "many replicas as the cluster has servers",
                err_code=error.err_code,
            ) from error
        raise _incompatible(f"stream {name}", fields_to_change, error, remedy) from error
    return "updated"


async def ensure_consumer(
    nc: Client, stream: str, config: Config
) -> Literal["created", "updated", "unchanged"]:
    """Create or update the durable consumer `config["durable_name"]` (or `"name"`) of a stream.

    Raises:
        NotFoundOnBusError: the stream does not exist.
        IncompatibleStreamError, BusRefusedError, BusUnavailableError: as for `ensure_stream`.
    """
    name = str(config.get("durable_name") or config["name"])
    wanted = {**config, "name": name}
    existing = await _existing_config(nc, f"CONSUMER.INFO.{stream}.{name}")
    if existing is None:
        try:
            await _put_consumer(nc, stream, name, wanted, "create")
        except BusRefusedError as error:
            if error.err_code not in _NAME_IN_USE:
                raise
            existing = await _existing_config(nc, f"CONSUMER.INFO.{stream}.{name}") or {}
        else:
            return "created"
    fields_to_change = differences(wanted, existing)
    if not fields_to_change:
        return "unchanged"
    if _PAUSE_UNTIL in fields_to_change:  # an update does not end a pause
        await api_request(nc, f"CONSUMER.PAUSE.{stream}.{name}", {})
    try:
        await _put_consumer(nc, stream, name, {**existing, **wanted}, "update")
    except BusRefusedError as error:
        what = f"consumer {name} of stream {stream}"
        raise _incompatible(
            what, fields_to_change, error, " Delete it, and run the command again"
        ) from error
    return "updated"


async def delete_stream(nc: Client, name: str) -> bool:
    """Delete a stream with its messages and consumers. Return whether it existed.

    Raises:
        BusUnavailableError: no response.
        BusRefusedError: the stream denies deletion.
    """
    return await _delete(nc, f"STREAM.DELETE.{name}")


async def delete_consumer(nc: Client, stream: str, name: str) -> bool:
    """Delete a consumer. Return whether it existed.

    Raises:
        BusUnavailableError: no response.
    """
    return await _delete(nc, f"CONSUMER.DELETE.{stream}.{name}")


async def consumer_names(nc: Client, stream: str) -> list[str]:
    """Return the names of all consumers of a stream.

    Raises:
        NotFoundOnBusError: the stream does not exist.
        BusUnavailableError: no response.
    """
    names: list[str] = []
    while True:
        page = await api_request(nc, f"CONSUMER.NAMES.{stream}", {"offset": len(names)})
        names += page.get("consumers") or ()
        if not page.get("consumers") or len(names) >= int(page["total"]):
            return names


async def consumer_infos(nc: Client, stream: str) -> list[dict[str, Any]]:
    """Return the server's information about all consumers of a stream.

    Raises the same errors as `consumer_names`.
    """
    infos: list[dict[str, Any]] = []
    while True:
        page = await api_request(nc, f"CONSUMER.LIST.{stream}", {"offset": len(infos)})
        infos += page.get("consumers") or ()
        if not page.get("consumers") or len(infos) >= int(page["total"]):
            return infos


def with_raised_limit(wanted: Config, existing: Config) -> Config:
    """Return `wanted`, with the existing `max_bytes` if an operator has raised it.

    An unlimited stream does not count as raised.
    """
    limit, existing_limit = wanted.get("max_bytes"), existing.get("max_bytes")
    if (
        not isinstance(limit, int)
        or not isinstance(existing_limit, int)
        or not 0 <= limit <= existing_limit
    ):
        return wanted
    return {**wanted, "max_bytes": existing_limit}


def differences(wanted: Config, existing: Config, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the fields of `wanted` that differ in `existing`, as path to (wanted, existing)."""
    result: dict[str, tuple[Any, Any]] = {}
    for key, value in wanted.items():
        result |= _difference(value, existing.get(key), f"{path}{key}")
    return result


def _difference(wanted: object, existing: object, path: str) -> dict[str, tuple[Any, Any]]:
    if isinstance(wanted, Mapping):
        inner = cast("Config", existing if isinstance(existing, Mapping) else _EMPTY)
        return differences(cast("Config", wanted), inner, f"{path}.")
    if isinstance(wanted, list | tuple):
        return _list_difference(cast("Sequence[object]", wanted), existing, path)
    if wanted == existing or (_is_unset(wanted) and _is_unset(existing)):
        return {}
    return {path: (wanted, existing)}


def _list_difference(
    wanted: Sequence[object], existing: object, path: str
) -> dict[str, tuple[Any, Any]]:
    items = cast("Sequence[object]", existing) if isinstance(existing, list) else ()
    if len(items) != len(wanted):
        return {path: (wanted, existing)}
    result: dict[str, tuple[Any, Any]] = {}
    for index, (wanted_item, item) in enumerate(zip(wanted, items, strict=True)):
        result |= _difference(wanted_item, item, f"{path}[{index}]")
    return result


def _is_unset(value: object) -> bool:
    return any(value is unset or value == unset for unset in _UNSET)


async def _existing_config(nc: Client, subject_suffix: str) -> dict[str, Any] | None:
    try:
        return (await api_request(nc, subject_suffix, None))["config"]
    except NotFoundOnBusError as error:
        if subject_suffix.startswith("CONSUMER") and "stream not found" in str(error):
            raise
        return None


async def _put_consumer(
    nc: Client, stream: str, name: str, config: Mapping[str, object], action: str
) -> None:
    subject = f"CONSUMER.CREATE.{stream}.{name}"
    only_filter = config.get("filter_subject")
    if only_filter:  # in the subject as well, so that permissions can restrict it
        subject += f".{only_filter}"
    await api_request(nc, subject, {"stream_name": stream, "config": config, "action": action})


async def _delete(nc: Client, request: str) -> bool:
    try:
        await api_request(nc, request, None)
    except NotFoundOnBusError:
        return False
    return True


def _incompatible(
    what: str, fields: Mapping[str, tuple[Any, Any]], error: BusRefusedError, remedy: str
) -> IncompatibleStreamError:
    text = "; ".join(
        f"{path}: expected {wanted!r}, found {existing!r}"
        for path, (wanted, existing) in fields.items()
    )
    return IncompatibleStreamError(
        f"{what} exists and cannot be changed in place ({error}). {text}.{remedy}"
    )
