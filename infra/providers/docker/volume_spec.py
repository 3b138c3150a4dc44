"""The fields and outputs of a ``Volume``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.docker.spec import path_of
from reconciler.provider.host_access import HostUse

DEFAULT_DRIVER: Final = "local"

_SAFE_TMPFS_OPTION: Final = re.compile(
    r"|(size|nr_inodes|nr_blocks|mode|uid|gid)=[0-9]+[kmg%]?|r[ow]|no(dev|exec|suid|atime)"
)
"""Safe options for a tmpfs. They exclude ``bind``, which would mount the device."""


class VolumeFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named volume of a Docker Engine."""

    driver: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=255)],
        msgspec.Meta(description="Volume driver: local, or an Engine plugin."),
    ] = DEFAULT_DRIVER
    options: Annotated[
        Annotated[
            dict[str, Annotated[str, msgspec.Meta(max_length=4096)]], msgspec.Meta(max_length=32)
        ],
        msgspec.Meta(
            description="Driver options. The local driver accepts type, device and o, like mount."
        ),
    ] = {}


class VolumeOutputs(msgspec.Struct, frozen=True):
    """Path of a volume on the Engine's host."""

    mountpoint: Annotated[
        str, msgspec.Meta(description="The volume's directory on the Engine's host.")
    ]


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a volume's fields, with the Engine's defaults."""
    return {"driver": DEFAULT_DRIVER, **fields, "options": fields.get("options") or {}}


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return the parts of the Engine's host that a volume uses (ADR 0060).

    A plain volume or a tmpfs uses none.
    """
    driver = fields.get("driver", DEFAULT_DRIVER)
    options: dict[str, str] = fields.get("options") or {}
    flags = options.get("o", "").split(",")
    if driver == DEFAULT_DRIVER and not options:
        return ()
    is_local = driver == DEFAULT_DRIVER and options.keys() <= {"type", "device", "o"}
    if (
        is_local
        and options.get("type") == "tmpfs"
        and all(map(_SAFE_TMPFS_OPTION.fullmatch, flags))
    ):
        return ()
    device = options.get("device", "")
    if is_local and device.startswith("/") and flags in (["bind"], ["rbind"], ["bind", "ro"]):
        return (HostUse("spec.options.device", "binds", path_of(device)),)
    local_options = ("type", "device", "o")
    names = [name for name in local_options if name in options] + sorted(
        options.keys() - set(local_options)
    )
    settings = [f"{name}={options[name]}" for name in names]
    if driver != DEFAULT_DRIVER:
        settings.insert(0, f"driver={driver}")
    return (HostUse("spec.options", "devices", ",".join(settings)),)


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe the data that a deletion would lose; empty if the data is stored elsewhere."""
    options: Fields = observed.fields.get("options") or {}
    if fields is not None or options.get("type") == "tmpfs" or "device" in options:
        return ""
    return f"all data of volume {observed.name}"
