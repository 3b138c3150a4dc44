"""The fields of a container, and their canonical form."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from events.allow import ROOT, has_parent
from events.composition import parent_in
from events.excerpt import list_first
from events.external import ExternalObject
from events.manifest import Fields
from events.secret import SecretRef
from reconciler.provider.host_access import HostUse, format_address
from reconciler.provider.kind import Inheritance, ObjectUse

CPU_PERIOD_MICROSECONDS: Final = 100_000
MIN_MEMORY_BYTES: Final = 6 * 1024 * 1024
"""The Engine rejects lower limits."""

NANOSECONDS: Final = 1_000_000_000
MAX_INTEGER: Final = 2**63 - 1
MAX_COUNT: Final = 2**31 - 1
"""The largest integers that the Engine accepts."""
DURATIONS: Final = {
    "intervalSeconds": "Interval",
    "timeoutSeconds": "Timeout",
    "startPeriodSeconds": "StartPeriod",
}
"""Duration fields of a health check: their names in a spec and in the Engine."""

DEFAULT_NETWORK: Final = "bridge"
DEFAULT_RESTART: Final = "always"

ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - how the Engine writes it
_ALL: Final = frozenset({None, "", "::", ALL_ADDRESSES})
_USER_AND_GROUP: Final = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?", re.ASCII)
_DEPLOYMENT: Final = "Deployment"
_UNRESTRICTED_NETWORKS: Final = frozenset({DEFAULT_NETWORK, "none"})

MUTABLE: Final = frozenset({"cpus", "maxRestarts", "memoryBytes", "networks", "restart", "running"})
"""Fields that the Engine changes in place. Changing any other field replaces the container."""

ANONYMOUS_VOLUMES: Final = "anonymousVolumes"
INHERITED_VOLUMES: Final = "inheritedVolumes"
"""Field of a creation: the anonymous volumes of the replaced container, by path."""


def _meta(description: str, **rules: Any) -> msgspec.Meta:
    return msgspec.Meta(description=description, **rules)


EnvName = Annotated[str, msgspec.Meta(pattern=r"^[^=\x00\s]{1,255}(?!\n)$")]
_Words = list[str]
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=86_400)]
"""The Engine does not accept shorter durations, and treats 0 as unset."""
_Network = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}(?!\n)$")]
_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00:]*(?!\n)$", max_length=4096)]


class _Part(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """Part of a container's spec."""


class Mount(_Part, frozen=True):
    """A mount: a named volume, a directory on the host, or memory."""

    target: Annotated[_Path, _meta("Path in the container.")]
    type: Annotated[
        Literal["volume", "bind", "tmpfs"],
        _meta("volume: a named volume. bind: a directory on the host. tmpfs: memory."),
    ] = "volume"
    source: Annotated[
        _Name | None,
        _meta(
            "Name of the volume, or path of the host directory. It must exist. Required, except"
            " for a tmpfs."
        ),
    ] = None
    read_only: Annotated[bool, _meta("Whether the mount is read-only.")] = False
    size_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)] | None,
        _meta("Maximum size of a tmpfs, in bytes."),
    ] = None

    def __post_init__(self) -> None:
        if (self.type == "tmpfs") == (self.source is not None):
            raise ValueError(
                "source: required for a volume and a bind, and not allowed for a tmpfs"
            )
        if self.type == "bind" and not (self.source or "").startswith("/"):
            raise ValueError(
                "source: must be a directory on the host for a bind, such as /srv/data"
            )
        if self.type == "bind" and has_parent(self.source or ""):
            raise ValueError("source: must not contain '..'")
        if self.type != "tmpfs" and self.size_bytes is not None:
            raise ValueError(
                "sizeBytes: allowed only for a tmpfs, because the driver determines the size of a "
                "volume"
            )


class Port(_Part, frozen=True):
    """A port of the container that is published on the host."""

    container: Annotated[_Port, _meta("Port in the container.")]
    host: Annotated[
        _Port | None, _meta("Port on the host. Default: a free port that the Engine selects.")
    ] = None
    address: Annotated[
        str, _meta("IP address of the host to listen on. Default: all addresses.")
    ] = ""
    protocol: Annotated[Literal["tcp", "udp", "sctp"], _meta("Transport protocol.")] = "tcp"

    def __post_init__(self) -> None:
        if self.address:  # the Engine treats any other string as all addresses
            _check_address("ports: address", self.address, ipaddress.ip_address)


class Network(_Part, frozen=True):
    """A network of the container. It must exist."""

    name: Annotated[_Network, _meta("Name of the network, or host, none or bridge. It must exist.")]
    aliases: Annotated[
        list[str], _meta("The container's additional DNS names in this network.")
    ] = []
    address: Annotated[
        str | None, _meta("Fixed IPv4 address in this network. Default: assigned by the Engine.")
    ] = None

    def __post_init__(self) -> None:
        if self.address is not None:
            _check_address("networks: address", self.address, ipaddress.IPv4Address)


class HealthCheck(_Part, frozen=True):
    """How the Engine checks whether the container works. Missing fields come from the image."""

    command: Annotated[
        Annotated[_Words, msgspec.Meta(min_length=1)],
        _meta("Command that runs in the container. Exit status 0 means healthy."),
    ]
    interval_seconds: Annotated[_Seconds | None, _meta("Seconds between checks.")] = None
    timeout_seconds: Annotated[
        _Seconds | None, _meta("Maximum duration of one check, in seconds.")
    ] = None
    start_period_seconds: Annotated[
        _Seconds | None, _meta("Seconds after the start during which failures do not count.")
    ] = None
    retries: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)] | None,
        _meta("Number of consecutive failures that make the container unhealthy."),
    ] = None


class ContainerFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A container of a Docker Engine.

    An undeclared field has the image's value, or the Engine's default.
    """

    image: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=512)],
        _meta(
            "Image, as the Engine names it. It must exist there: Reconciler does not pull images."
        ),
    ]
    command: Annotated[
        _Words | None, _meta("Command with its arguments. Default: the image's.")
    ] = None
    entrypoint: Annotated[
        _Words | None,
        _meta("Program that receives the command as arguments. Default: the image's."),
    ] = None
    env: Annotated[
        dict[EnvName, str | int | float | bool | SecretRef],
        _meta("Environment variables: values, references or secrets."),
    ] = {}
    user: Annotated[
        _Name | None, _meta("User, or USER:GROUP, by name or number. Default: the image's.")
    ] = None
    working_dir: Annotated[
        _Path | None, _meta("Working directory of the command. Default: the image's.")
    ] = None
    mounts: Annotated[
        list[Mount], _meta("Volumes, host directories and in-memory filesystems to mount.")
    ] = []
    ports: Annotated[list[Port], _meta("Container ports that the host publishes.")] = []
    networks: Annotated[
        list[Network], _meta("All of the container's networks. Default: bridge.")
    ] = []
    memory_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=MIN_MEMORY_BYTES, le=MAX_INTEGER)] | None,
        _meta(
            "Memory limit, in bytes. The container may also use the same amount of swap. "
            "Default: no limit."
        ),
    ] = None
    cpus: Annotated[
        Annotated[float, msgspec.Meta(ge=0.01, le=10_000)] | None,
        _meta("CPU limit, in processors: 0.5 is half a processor. Default: no limit."),
    ] = None
    health_check: Annotated[
        HealthCheck | None, _meta("The container's health check. Default: the image's.")
    ] = None
    restart: Annotated[
        Literal["no", "always", "on-failure", "unless-stopped"],
        _meta("The Engine's restart policy for a container that exits."),
    ] = DEFAULT_RESTART
    max_restarts: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)],
        _meta("Maximum number of restarts with on-failure; 0 means no limit."),
    ] = 0
    stop_seconds: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=3600)] | None,
        _meta(
            "Seconds between the stop signal and the kill. Default: 10. The worker waits at "
            "most half of limits.requestTimeoutSeconds."
        ),
    ] = None
    running: Annotated[
        bool,
        _meta(
            "Whether the container is started. A process that ends as its restart policy expects "
            "is not started again. false keeps the container stopped."
        ),
    ] = True
    anonymous_volumes: Annotated[
        Literal["Protect", "Leave"],
        _meta(
            "Whether a deletion of the container is held while the container has anonymous "
            "volumes. Either way, the volumes stay on the Engine."
        ),
    ] = "Protect"

    def __post_init__(self) -> None:
        if self.max_restarts and self.restart != "on-failure":
            raise ValueError("maxRestarts: allowed only with restart: on-failure")
        if self.entrypoint == [""]:
            raise ValueError(
                "entrypoint: must name a program; the image's entrypoint cannot be removed"
            )
        _check_unique("mounts: target", [each.target for each in self.mounts])
        _check_unique(
            "ports: host",
            [f"{each.address}:{each.host}/{each.protocol}" for each in self.ports if each.host],
        )
        _check_unique("networks: name", [each.name for each in self.networks])
        if len(self.networks) > 1 and {"host", "none"} & {each.name for each in self.networks}:
            raise ValueError("networks: host or none must be the only network")


class ContainerOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """Outputs of a container. It has addresses and ports only while it runs."""

    image_id: Annotated[
        str, msgspec.Meta(description="Id of the image that the container was created from.")
    ]
    state: Annotated[
        str, msgspec.Meta(description="State as the Engine reports it, such as running or exited.")
    ]
    address: Annotated[
        str | None,
        msgspec.Meta(
            description="IP address in the first network by name, while the container runs."
        ),
    ] = None
    addresses: Annotated[
        dict[str, str],
        msgspec.Meta(description="IP address in each network, while the container runs."),
    ] = {}
    ports: Annotated[
        dict[str, int],
        msgspec.Meta(
            description="Port on the host for each container port, such as 5432/tcp, while "
            "the container runs."
        ),
    ] = {}
    health: Annotated[
        str | None,
        msgspec.Meta(description="Result of the health check, as the Engine reports it."),
    ] = None
    started_at: Annotated[
        str | None,
        msgspec.Meta(
            description="Time at which its process started, while the container runs. It changes "
            "with each restart."
        ),
    ] = None
    exit_code: Annotated[
        int | None, msgspec.Meta(description="Exit code of a container that has exited.")
    ] = None
    restarts_exhausted: Annotated[
        bool,
        msgspec.Meta(description="Whether the Engine stopped restarting it after maxRestarts."),
    ] = False
    anonymous_volumes: Annotated[
        dict[str, str],
        msgspec.Meta(
            description="Volume without a declared name for each path, such as one that the image "
            "requires."
        ),
    ] = {}


def _check_address(name: str, value: str, kind: Callable[[str], object]) -> None:
    try:
        kind(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_unique(name: str, values: list[str]) -> None:
    duplicates = {each for each in values if values.count(each) > 1}
    if duplicates:
        raise ValueError(f"{name} {min(duplicates)!r} is a duplicate")


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a container's fields: no empty values, sorted lists."""
    normalized: Fields = {
        name: value for name, value in fields.items() if value not in (None, {}, [])
    }
    if "env" in normalized:
        normalized["env"] = {name: _to_string(value) for name, value in normalized["env"].items()}
    for name, part in (("mounts", _mount), ("ports", _port), ("networks", _network)):
        if name in normalized:
            normalized[name] = sorted((part(each) for each in normalized[name]), key=_sort_key)
    if normalized.get("networks") == [{"name": DEFAULT_NETWORK}]:
        del normalized["networks"]
    if "healthCheck" in normalized:
        normalized["healthCheck"] = _health_check(normalized["healthCheck"])
    if "workingDir" in normalized:
        normalized["workingDir"] = "/" + posixpath.normpath(normalized["workingDir"]).lstrip("/")
    if "cpus" in normalized:
        normalized["cpus"] = to_cpu_quota(normalized["cpus"]) / CPU_PERIOD_MICROSECONDS
    if not normalized.get("maxRestarts"):
        normalized.pop("maxRestarts", None)
    if normalized.get(ANONYMOUS_VOLUMES) == "Protect":
        del normalized[ANONYMOUS_VOLUMES]
    return {"restart": DEFAULT_RESTART, "running": True, **normalized}


def comparable(fields: Fields) -> Fields:
    """Return the fields that a container shows, with each secret replaced by its digest."""
    if ANONYMOUS_VOLUMES in fields:
        fields = {name: value for name, value in fields.items() if name != ANONYMOUS_VOLUMES}
    env = cast("dict[str, Any]", fields.get("env") or {})
    if not any(isinstance(value, dict) for value in env.values()):
        return fields
    return {**fields, "env": {name: _replace_by_digest(value) for name, value in env.items()}}


# --- a process that ends by itself


def has_finished(fields: Fields, outputs: Fields) -> bool:
    """Return whether a process has ended, and its restart policy does not start it again.

    With ``on-failure``, the Engine restarts a failed process until ``maxRestarts``. If it does not,
    another client stopped the container.
    """
    exit_code = outputs.get("exitCode")
    match fields.get("restart", DEFAULT_RESTART):
        case "no":
            return exit_code is not None
        case "on-failure":
            return exit_code == 0 or bool(outputs.get("restartsExhausted"))
        case _:
            return False


def settled_paths(desired: Fields, applied: Fields, observed: ExternalObject) -> Collection[str]:
    """Return ``running`` for a process that has finished, unless ``running: false`` stopped it."""
    is_started = desired.get("running", True) and applied.get("running", True)
    return ("running",) if is_started and has_finished(desired, observed.outputs) else ()


# --- anonymous volumes


def guards_data(fields: Fields) -> bool:
    """Return whether the deletion of a container with anonymous volumes is held."""
    return fields.get(ANONYMOUS_VOLUMES) != "Leave"


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe the anonymous volumes that only this container references; empty if none."""
    parent = parent_in(observed.labels)
    is_replica = parent is not None and parent.kind == _DEPLOYMENT
    if fields is not None or is_replica:  # every rolling update deletes replicas
        return ""
    return _describe_volumes(observed.name, observed.outputs.get(ANONYMOUS_VOLUMES) or {})


def inherit(desired: Fields, replaced: ExternalObject) -> Inheritance:
    """Return the anonymous volumes for the new container, and those that it cannot mount."""
    volumes: dict[str, str] = replaced.outputs.get(ANONYMOUS_VOLUMES) or {}
    targets = {posixpath.normpath(each["target"]) for each in desired.get("mounts") or ()}
    hidden = {path: name for path, name in volumes.items() if path in targets or ":" in path}
    mounted = {path: name for path, name in volumes.items() if path not in hidden}
    loss = _describe_volumes(replaced.name, hidden) if guards_data(desired) else ""
    return Inheritance({INHERITED_VOLUMES: mounted} if mounted else {}, loss)


def _describe_volumes(container: str, volumes: Mapping[str, str]) -> str:
    if not volumes:
        return ""
    listed = list_first([f"{path} ({name})" for path, name in sorted(volumes.items())])
    return (
        f"the only reference to the anonymous volumes of container {container}: {listed}, which "
        "stay on the Engine"
    )


def find_claims(_external_name: str, fields: Fields) -> Sequence[str]:
    """Return the ports of the host that a container publishes."""
    ports: list[Fields] = fields.get("ports") or []
    return [
        f"{each.get('protocol', 'tcp')}/{each['host']}"
        + ("" if each.get("address") in _ALL else f"/{each['address']}")
        for each in ports
        if each.get("host")
    ]


def find_uses(_external_name: str, fields: Fields) -> Sequence[ObjectUse]:
    """Return the named volumes that a container mounts."""
    mounts: list[Fields] = fields.get("mounts") or []
    return [
        ObjectUse("spec.mounts.source", "Volume", each["source"])
        for each in mounts
        if each.get("source") and each.get("type") != "bind" and "/" not in each["source"]
    ]


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return which parts of the Engine's host a container uses (ADR 0060)."""
    host_uses = [HostUse("spec.image", "images", fields["image"])]
    if (user := fields.get("user")) is None:
        # The image may declare root as its user, and the decider cannot read it.
        host_uses.append(HostUse("spec.user", "users", ROOT, "set a number other than 0"))
    elif not _is_unprivileged(user):
        # The image may assign the number 0 to any name.
        host_uses.append(HostUse("spec.user", "users", user, "set a number other than 0"))
    mounts: list[Fields] = fields.get("mounts") or []
    host_uses += [
        HostUse("spec.mounts.source", "binds", path_of(each["source"]), "mount a volume")
        for each in mounts
        if each.get("type") == "bind" or "/" in (each.get("source") or "")
    ]
    ports: list[Fields] = fields.get("ports") or []
    host_uses += [
        HostUse(
            "spec.ports.host",
            "listen",
            format_address(each.get("address") or ALL_ADDRESSES, each["host"]),
            "omit host, so that the Engine selects a free port",
        )
        for each in ports
        if each.get("host")
    ]
    networks: list[Fields] = fields.get("networks") or []
    host_uses += [
        HostUse("spec.networks.name", "networks", each["name"])
        for each in networks
        if each["name"] not in _UNRESTRICTED_NETWORKS
    ]
    return host_uses


def _is_unprivileged(user: str) -> bool:
    """Return whether a user and its group are numbers that cannot become 0.

    The Engine does not check numbers that are missing from the image's /etc/passwd, and uses their
    lowest 32 bits: 4294967296 is root.
    """
    match = _USER_AND_GROUP.fullmatch(user)
    return match is not None and all(0 < int(each) <= MAX_COUNT for each in match.groups() if each)


def path_of(source: str) -> str:
    """Return the canonical form of a path on the host."""
    return source if has_parent(source) else "/" + posixpath.normpath(source).lstrip("/")


def to_cpu_quota(cpus: float) -> int:
    """Return the CPU time per period, in microseconds."""
    return round(cpus * CPU_PERIOD_MICROSECONDS)


def to_nanoseconds(seconds: float) -> int:
    """Return a duration in nanoseconds, the Engine's unit."""
    return round(seconds * NANOSECONDS)


def is_secret(value: object) -> bool:
    """Return whether a value of ``env`` is a secret, as a reference or a digest."""
    return isinstance(value, dict) and bool({"$secret", "secret"} & cast("Fields", value).keys())


def _replace_by_digest(value: object) -> object:
    if isinstance(value, dict) and "$secret" in value:
        return {"secret": cast("dict[str, str]", value).get("digest", "")}
    return cast("object", value)


def _to_string(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return cast("object", value) if isinstance(value, dict) else str(value)


def _mount(fields: Fields) -> Fields:
    return _without_defaults(fields, {"type": "volume", "readOnly": False}, always=("type",))


def _port(fields: Fields) -> Fields:
    return _without_defaults(fields, {"protocol": "tcp", "address": ""}, always=("protocol",))


def _network(fields: Fields) -> Fields:
    result = _without_defaults(fields, {})
    if "aliases" in result:
        result["aliases"] = sorted(set(result["aliases"]))
    return result


def _health_check(fields: Fields) -> Fields:
    result = _without_defaults(fields, {})
    for name in DURATIONS.keys() & result.keys():
        result[name] = to_nanoseconds(result[name]) / NANOSECONDS
    return result


def _without_defaults(fields: Fields, defaults: Fields, *, always: tuple[str, ...] = ()) -> Fields:
    merged = {**defaults, **{name: value for name, value in fields.items() if value is not None}}
    return {
        name: value
        for name, value in merged.items()
        if name in always or (value != [] and value != defaults.get(name))
    }


def _sort_key(part: Fields) -> bytes:
    return msgspec.json.encode(part, order="deterministic")
