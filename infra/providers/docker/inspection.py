"""A container as sent to the Engine, and as the Engine reports it.

Only declared fields are compared. The Engine adds values that no manifest declares, from the image
(``PATH`` and other variables, the command, exposed ports, a health check) or by itself
(``MemorySwap``, the short id as an alias). So the label ``reconciler/declared`` lists the declared
fields, and which variables are secrets.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.docker.engine import DECLARED, WRITTEN_BY, unreserved_labels
from infra.providers.docker.spec import (
    ANONYMOUS_VOLUMES,
    CPU_PERIOD_MICROSECONDS,
    DEFAULT_NETWORK,
    DEFAULT_RESTART,
    DURATIONS,
    INHERITED_VOLUMES,
    MUTABLE,
    NANOSECONDS,
    is_secret,
    normalize,
    to_cpu_quota,
    to_nanoseconds,
)
from infra.providers.responses import UNDECODABLE, Response, decode_body

MAX_INSPECTION_BYTES: Final = 1024 * 1024
"""An object has at most 256 KiB, and contains only part of what the Engine reports."""

MAX_VARIABLES: Final = 32_768
"""Limit on a container's variables, each of which takes 7 µs. An object has no room for more."""

_ANONYMOUS_NAME: Final = re.compile(r"[0-9a-f]{64}")
_NANO_CPUS: Final = 1_000_000_000
_SHORT_ID_CHARACTERS: Final = 12
_SECRET: Final = "$secret"  # noqa: S105 - a marker, not a secret


class _ResponsePart(msgspec.Struct, frozen=True, rename="pascal"):
    """Part of the Engine's response. Other fields in it are ignored."""


class State(_ResponsePart, frozen=True):
    """The state of a container's process."""

    class Health(_ResponsePart, frozen=True):
        """The result of its health check."""

        status: str = ""

    status: str = ""
    running: bool = False
    paused: bool = False
    restarting: bool = False
    exit_code: int = 0
    started_at: str = ""
    health: Health | None = None

    @property
    def is_up(self) -> bool:
        """Whether it runs, or the Engine is about to restart it."""
        return self.running and not self.paused


class _HealthCheck(_ResponsePart, frozen=True):
    test: list[str] | None = None
    interval: int = 0
    timeout: int = 0
    start_period: int = 0
    retries: int = 0


class _Config(_ResponsePart, frozen=True):
    image: str = ""
    cmd: list[str] | None = None
    entrypoint: list[str] | None = None
    env: list[str] | None = None
    user: str = ""
    working_dir: str = ""
    labels: dict[str, str] | None = None
    healthcheck: _HealthCheck | None = None
    stop_timeout: int | None = None
    tty: bool = False


class _TmpfsOptions(_ResponsePart, frozen=True):
    size_bytes: int = 0


class _Mount(_ResponsePart, frozen=True):
    target: str
    type: str = "volume"
    source: str = ""
    read_only: bool = False
    tmpfs_options: _TmpfsOptions | None = None


class _MountPoint(_ResponsePart, frozen=True):
    destination: str
    type: str = ""
    name: str = ""
    source: str = ""
    rw: bool = msgspec.field(name="RW", default=True)


class _Binding(_ResponsePart, frozen=True):
    host_ip: str = ""
    host_port: str = ""


class _RestartPolicy(_ResponsePart, frozen=True):
    name: str = ""
    maximum_retry_count: int = 0


class _HostConfig(_ResponsePart, frozen=True):
    mounts: list[_Mount] | None = None
    port_bindings: dict[str, list[_Binding] | None] | None = None
    restart_policy: _RestartPolicy = _RestartPolicy()
    memory: int = 0
    nano_cpus: int = 0
    cpu_period: int = 0
    cpu_quota: int = 0


class _Ipam(_ResponsePart, frozen=True):
    ipv4_address: str = msgspec.field(name="IPv4Address", default="")


class _Endpoint(_ResponsePart, frozen=True):
    ip_address: str = msgspec.field(name="IPAddress", default="")
    aliases: list[str] | None = None
    ipam: _Ipam | None = msgspec.field(name="IPAMConfig", default=None)


class _NetworkSettings(_ResponsePart, frozen=True):
    networks: dict[str, _Endpoint | None] | None = None
    ports: dict[str, list[_Binding] | None] | None = None


class Inspection(_ResponsePart, frozen=True):
    """A container as the Engine reports it."""

    id: str
    name: str
    image: str = ""
    state: State = State()
    restart_count: int = 0
    config: _Config = _Config()
    host_config: _HostConfig = _HostConfig()
    mounts: list[_MountPoint] | None = None
    network_settings: _NetworkSettings = _NetworkSettings()
    size_bytes: int = 0

    @property
    def external_name(self) -> str:
        """The name, without the slash that the Engine adds."""
        return self.name.removeprefix("/")

    @property
    def readings(self) -> Fields:
        """Values that change without an action."""
        return {
            "startedAt": self.state.started_at,
            "restarts": self.restart_count,
            "lastExitCode": self.state.exit_code,
        }

    @property
    def labels(self) -> Mapping[str, str]:
        """All labels, including the image's and the reserved ones."""
        return self.config.labels or {}

    @property
    def anonymous_volumes(self) -> dict[str, str]:
        """The volumes without a declared name, by path, including inherited ones."""
        declared = {posixpath.normpath(each.target) for each in self.host_config.mounts or ()}
        return {
            each.destination: each.name
            for each in sorted(self.mounts or (), key=lambda each: each.destination)
            if each.type == "volume" and each.destination not in declared
            if _ANONYMOUS_NAME.fullmatch(each.name)
        }

    @property
    def networks(self) -> dict[str, Fields]:
        """The container's networks by name, in the format of a spec."""
        endpoints = self.network_settings.networks or {}
        return {name: self._network(name, endpoints[name]) for name in sorted(endpoints)}

    def _network(self, name: str, endpoint: _Endpoint | None) -> Fields:
        fields: Fields = {"name": name}
        if endpoint is None:
            return fields
        short_id = self.id[:_SHORT_ID_CHARACTERS]
        if aliases := sorted({each for each in endpoint.aliases or () if each != short_id}):
            fields["aliases"] = aliases
        if endpoint.ipam is not None and endpoint.ipam.ipv4_address:
            fields["address"] = endpoint.ipam.ipv4_address
        return fields


class _NameOnly(_ResponsePart, frozen=True):
    name: str


_decoder = msgspec.json.Decoder(Inspection)
_name_decoder = msgspec.json.Decoder(_NameOnly)


def decode_inspection(response: Response) -> Inspection:
    """Decode the response for a container, and record its size."""
    inspection = decode_body(response, _decoder)
    return msgspec.structs.replace(inspection, size_bytes=len(response.content))


def read_name(response: Response) -> str:
    """Return a container's name from a response that may otherwise be invalid."""
    return decode_body(response, _name_decoder).name.removeprefix("/")


def describe_excess(inspection: Inspection) -> str:
    """Describe why a container is too large to convert; empty if it is not."""
    variables = len(inspection.config.env or ())
    if variables > MAX_VARIABLES:
        return f"{variables} variables exceed the limit of {MAX_VARIABLES}"
    return describe_excess_bytes(inspection.size_bytes)


def describe_excess_bytes(number: int) -> str:
    """Describe why the response for a container is too long; empty if it is not."""
    is_too_long = number > MAX_INSPECTION_BYTES
    return f"{number} bytes exceed the limit of {MAX_INSPECTION_BYTES}" if is_too_long else ""


# --- the format sent to the Engine


def build_configuration(
    fields: Fields, env: Mapping[str, str], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Build a container's configuration for the Engine. ``env`` contains the secrets' values."""
    host: dict[str, Any] = {
        "Mounts": [_build_mount(each) for each in fields.get("mounts", [])],
        # Not in Mounts, which contains exactly the declared ones.
        "Binds": [f"{name}:{path}" for path, name in fields.get(INHERITED_VOLUMES, {}).items()],
        "PortBindings": _build_bindings(fields),
        **_build_limits(fields),
    }
    content: dict[str, Any] = {
        "Image": fields["image"],
        "Env": [f"{name}={value}" for name, value in sorted(env.items())],
        "ExposedPorts": {port: {} for port in host["PortBindings"]},
        "Labels": {**labels, DECLARED: declared_label(fields)},
        "HostConfig": host,
    }
    for name, engine_name in _UNCONVERTED_FIELDS.items():
        if name in fields:
            content[engine_name] = fields[name]
    if "healthCheck" in fields:
        content["Healthcheck"] = _build_health_check(fields["healthCheck"])
    if networks := fields.get("networks"):
        first = networks[0]
        host["NetworkMode"] = first["name"]
        content["NetworkingConfig"] = {"EndpointsConfig": {first["name"]: build_endpoint(first)}}
    return content


def declared_label(fields: Fields) -> str:
    """Encode which fields are declared and which variables are secrets, without values."""
    return msgspec.json.encode(_skeleton(fields), order="deterministic").decode()


def limits_to_write(fields: Fields, inspection: Inspection) -> dict[str, Any]:
    """Return the limits and the restart policy that differ, in the Engine's format.

    ``Memory`` is None if no ``memoryBytes`` is declared, because the Engine cannot remove a limit.
    """
    observed, desired = read_fields(inspection, _no_digest), _build_limits(fields)
    changes: dict[str, Any] = {}
    if observed.get("memoryBytes") != fields.get("memoryBytes"):
        changes |= {"Memory": desired.get("Memory"), "MemorySwap": desired.get("MemorySwap")}
    if observed.get("cpus") != fields.get("cpus"):
        quota = desired.get("CpuQuota", -1)
        changes |= {"CpuPeriod": CPU_PERIOD_MICROSECONDS, "CpuQuota": quota}
        # Another client set the limit with NanoCpus, so it can only be changed with NanoCpus.
        if inspection.host_config.nano_cpus:
            changes = {name: each for name, each in changes.items() if not name.startswith("Cpu")}
            changes["NanoCpus"] = quota * _NANO_CPUS // CPU_PERIOD_MICROSECONDS
    if _restart(observed) != _restart(fields):
        changes["RestartPolicy"] = desired["RestartPolicy"]
    return changes


def build_endpoint(network: Fields) -> dict[str, Any]:
    """Build the Engine's settings for a container in a network."""
    content: dict[str, Any] = {}
    if "aliases" in network:
        content["Aliases"] = network["aliases"]
    if "address" in network:
        content["IPAMConfig"] = {"IPv4Address": network["address"]}
    return content


def desired_networks(fields: Fields) -> dict[str, Fields]:
    """Return the desired networks of a container by name."""
    networks = fields.get("networks") or [{"name": DEFAULT_NETWORK}]
    return {each["name"]: each for each in networks}


_UNCONVERTED_FIELDS: Final = {
    "command": "Cmd",
    "entrypoint": "Entrypoint",
    "user": "User",
    "workingDir": "WorkingDir",
    "stopSeconds": "StopTimeout",
}


def _restart(fields: Fields) -> tuple[str, int]:
    return fields.get("restart", DEFAULT_RESTART), fields.get("maxRestarts", 0)


def _build_limits(fields: Fields) -> dict[str, Any]:
    name, max_restarts = _restart(fields)
    limits: dict[str, Any] = {"RestartPolicy": {"Name": name, "MaximumRetryCount": max_restarts}}
    if "memoryBytes" in fields:
        # Both, because the Engine rejects a limit above the old limit on memory plus swap.
        limits |= {"Memory": fields["memoryBytes"], "MemorySwap": 2 * fields["memoryBytes"]}
    if "cpus" in fields:
        # Not NanoCpus, because the Engine cannot remove such a limit.
        limits |= {"CpuPeriod": CPU_PERIOD_MICROSECONDS, "CpuQuota": to_cpu_quota(fields["cpus"])}
    return limits


def _build_mount(mount: Fields) -> dict[str, Any]:
    content: dict[str, Any] = {"Type": mount["type"], "Target": mount["target"]}
    if "source" in mount:
        content["Source"] = mount["source"]
    if mount.get("readOnly"):
        content["ReadOnly"] = True
    if "sizeBytes" in mount:
        content["TmpfsOptions"] = {"SizeBytes": mount["sizeBytes"]}
    return content


def _build_bindings(fields: Fields) -> dict[str, list[dict[str, str]]]:
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in fields.get("ports", []):
        binding = {"HostIp": port.get("address", ""), "HostPort": str(port.get("host", ""))}
        bindings.setdefault(f"{port['container']}/{port['protocol']}", []).append(binding)
    return bindings


def _build_health_check(check: Fields) -> dict[str, Any]:
    content: dict[str, Any] = {"Test": ["CMD", *check["command"]]}
    for name, engine_name in DURATIONS.items():
        if name in check:
            content[engine_name] = to_nanoseconds(check[name])
    if "retries" in check:
        content["Retries"] = check["retries"]
    return content


# --- the format read from the Engine


def as_object(inspection: Inspection, digest: Callable[[str], str]) -> ExternalObject:
    """Convert a container to an object; ``digest`` computes the digest of a secret."""
    return ExternalObject(
        name=inspection.external_name,
        fields=read_fields(inspection, digest),
        uid=inspection.id,
        labels=unreserved_labels(inspection.labels),
        written_by=inspection.labels.get(WRITTEN_BY),
        outputs=_outputs(inspection),
    )


def read_fields(inspection: Inspection, digest: Callable[[str], str]) -> Fields:
    """Return the current values of the declared fields, and of the mutable ones.

    For a foreign container, return all fields, and treat each variable as a possible secret.
    """
    normalized = normalize(_all_fields(inspection))
    declared = _declared(inspection)
    if declared is None:
        env = normalized.get("env", {})
        return (
            {**normalized, "env": {name: _hide(env[name], digest) for name in env}}
            if env
            else normalized
        )
    observed = {name: normalized[name] for name in MUTABLE if name in normalized}
    for name, part in declared.items():
        if name in normalized and name not in MUTABLE:
            observed[name] = _project(normalized[name], part, digest)
    return observed


def _all_fields(inspection: Inspection) -> Fields:
    config, host = inspection.config, inspection.host_config
    networks = inspection.networks
    return {
        "image": config.image,
        "command": config.cmd,
        "entrypoint": config.entrypoint,
        "env": _read_env(config.env or ()),
        "user": config.user or None,
        "workingDir": config.working_dir or None,
        "stopSeconds": config.stop_timeout,
        "mounts": _read_mounts(inspection),
        "ports": _read_ports(host),
        "networks": list(networks.values()),
        "memoryBytes": host.memory if host.memory > 0 else None,
        "cpus": _read_cpus(host),
        "healthCheck": _read_health_check(config.healthcheck),
        "restart": host.restart_policy.name or "no",
        "maxRestarts": host.restart_policy.maximum_retry_count,
        "running": inspection.state.is_up,
    }


def _read_env(lines: Iterable[str]) -> dict[str, str]:
    parts = (line.partition("=") for line in lines)
    return {name: value for name, _, value in parts}


def _read_mounts(inspection: Inspection) -> list[Fields]:
    if inspection.host_config.mounts is not None:
        return [
            {
                "type": each.type,
                "target": each.target,
                "source": each.source or None,
                "readOnly": each.read_only,
                "sizeBytes": each.tmpfs_options.size_bytes or None if each.tmpfs_options else None,
            }
            for each in inspection.host_config.mounts
        ]
    return [
        {
            "type": each.type,
            "target": each.destination,
            "source": each.name or each.source or None,
            "readOnly": not each.rw,
        }
        for each in inspection.mounts or ()
    ]


def _read_ports(host: _HostConfig) -> list[Fields]:
    ports: list[Fields] = []
    for port, bindings in (host.port_bindings or {}).items():
        number, _, protocol = port.partition("/")
        ports += [
            {
                "container": int(number),
                "protocol": protocol or "tcp",
                "host": int(each.host_port) if each.host_port.strip("0").isdecimal() else None,
                "address": each.host_ip,
            }
            for each in bindings or ()
        ]
    return ports


def _read_cpus(host: _HostConfig) -> float | None:
    if host.nano_cpus > 0:
        return host.nano_cpus / _NANO_CPUS
    if host.cpu_quota > 0:
        return host.cpu_quota / (host.cpu_period or CPU_PERIOD_MICROSECONDS)
    return None


def _read_health_check(check: _HealthCheck | None) -> Fields | None:
    if check is None or not check.test or check.test == ["NONE"]:
        return None
    fields: Fields = {"command": check.test[1:] if check.test[0] == "CMD" else check.test}
    durations = (check.interval, check.timeout, check.start_period)
    for name, nanoseconds in zip(DURATIONS, durations, strict=True):
        fields[name] = nanoseconds / NANOSECONDS if nanoseconds else None
    return {**fields, "retries": check.retries or None}


def _outputs(inspection: Inspection) -> Fields:
    """Return values that are stable while the container runs, which excludes counters."""
    state, settings = inspection.state, inspection.network_settings
    outputs: Fields = {"imageId": inspection.image, "state": state.status}
    if volumes := inspection.anonymous_volumes:
        outputs[ANONYMOUS_VOLUMES] = volumes
    if state.health is not None and state.health.status not in ("", "none"):
        outputs["health"] = state.health.status
    if not state.running:
        return {**outputs, **_exit_outputs(inspection)}
    outputs["startedAt"] = state.started_at
    networks = settings.networks or {}
    addresses = {
        name: each.ip_address for name, each in networks.items() if each and each.ip_address
    }
    if addresses:
        outputs["addresses"] = dict(sorted(addresses.items()))
        outputs["address"] = outputs["addresses"][min(addresses)]
    ports = {port: int(each[0].host_port) for port, each in (settings.ports or {}).items() if each}
    return {**outputs, "ports": ports} if ports else outputs


def _exit_outputs(inspection: Inspection) -> Fields:
    if inspection.state.status != "exited":
        return {}
    outputs: Fields = {"exitCode": inspection.state.exit_code}
    policy = inspection.host_config.restart_policy
    if 0 < policy.maximum_retry_count <= inspection.restart_count:
        outputs["restartsExhausted"] = True
    return outputs


# --- declared fields


def _skeleton(value: Any) -> Any:
    """Return a declaration's structure, with each value replaced by 1."""
    if is_secret(value):
        return _SECRET
    if isinstance(value, dict):
        return {name: _skeleton(each) for name, each in cast("Fields", value).items()}
    return 1


def _declared(inspection: Inspection) -> Fields | None:
    """Return the declared structure of an owned container; None for a foreign container."""
    label = inspection.labels.get(DECLARED)
    if label is None or WRITTEN_BY not in inspection.labels:
        return None
    try:
        return msgspec.json.decode(label, type=dict[str, Any])
    except UNDECODABLE:  # written by another client
        return None


def _project(value: object, part: object, digest: Callable[[str], str]) -> object:
    if part == _SECRET:
        return _hide(value, digest)
    if isinstance(value, dict) and isinstance(part, dict):
        observed, declared = cast("Fields", value), cast("Fields", part)
        return {
            name: _project(observed[name], each, digest)
            for name, each in declared.items()
            if name in observed
        }
    return cast("object", value)


def _hide(value: Any, digest: Callable[[str], str]) -> Fields:
    return {"secret": digest(str(value))}


def _no_digest(_value: str) -> str:
    return ""
