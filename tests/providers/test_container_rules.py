"""The pure rules of a container: the end of its process, and its anonymous volumes."""

from __future__ import annotations

from typing import Any

import pytest

from events.composition import PART_OF_LABEL
from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.docker.container import CONTAINER

VOLUMES = {"/data": "a" * 64, "/logs": "b" * 64}


def fields(**spec: Any) -> Fields:
    return CONTAINER.check_fields({"image": "app:1", **spec})


def container(labels: dict[str, str] | None = None, **outputs: Any) -> ExternalObject:
    return ExternalObject("app", {}, "id", labels=labels or {}, outputs=outputs)


@pytest.mark.parametrize(
    ("restart", "outputs", "reason"),
    [
        ("no", {"exitCode": 0}, "Completed"),
        ("no", {"exitCode": 1}, "Exited"),
        ("no", {}, ""),
        ("on-failure", {"exitCode": 0}, "Completed"),
        ("on-failure", {"exitCode": 1, "restartsExhausted": True}, "Exited"),
        ("on-failure", {"exitCode": 137}, ""),  # another client stopped it
        ("always", {"exitCode": 0}, ""),
        ("unless-stopped", {"exitCode": 0}, ""),
    ],
)
def test_the_restart_policy_decides_whether_a_process_has_finished(
    restart: str, outputs: Fields, reason: str
):
    desired, existing = fields(restart=restart), container(**outputs)
    settled = CONTAINER.settled_paths(desired, desired, existing)
    assert list(settled) == (["running"] if reason else [])
    if reason:
        ready = CONTAINER.ready(desired, existing)
        assert (ready.reason, ready.is_ready) == (reason, reason == "Completed")
    stopped = {**desired, "running": False}
    assert not CONTAINER.settled_paths(desired, stopped, existing), "running: false stopped it"
    assert not CONTAINER.settled_paths(stopped, desired, existing)


def test_a_new_container_inherits_the_anonymous_volumes_that_no_mount_hides():
    assert CONTAINER.inherit is not None
    existing = container(anonymousVolumes=VOLUMES)
    everything = CONTAINER.inherit(fields(), existing)
    assert (everything.fields, everything.loss) == ({"inheritedVolumes": VOLUMES}, "")
    hiding = {"mounts": [{"target": "/data/", "type": "tmpfs"}]}
    part = CONTAINER.inherit(fields(**hiding), existing)
    assert part.fields == {"inheritedVolumes": {"/logs": VOLUMES["/logs"]}}
    assert VOLUMES["/data"] in part.loss
    assert VOLUMES["/logs"] not in part.loss
    assert not CONTAINER.inherit(fields(**hiding, anonymousVolumes="Leave"), existing).loss
    assert CONTAINER.inherit(fields(), container()) == ({}, "")


def test_a_deletion_would_lose_the_anonymous_volumes_except_of_a_replica():
    assert VOLUMES["/data"] in CONTAINER.describe_data_loss(
        None, container(anonymousVolumes=VOLUMES)
    )
    assert not CONTAINER.describe_data_loss(fields(), container(anonymousVolumes=VOLUMES))
    assert not CONTAINER.describe_data_loss(None, container())
    parents = {"default.Deployment.web": False, "default.GitSource.web": True}
    for parent, is_guarded in parents.items():
        part = container({PART_OF_LABEL: parent}, anonymousVolumes=VOLUMES)
        assert bool(CONTAINER.describe_data_loss(None, part)) is is_guarded
    assert CONTAINER.guards_data(fields())
    assert not CONTAINER.guards_data(fields(anonymousVolumes="Leave"))


def test_the_guard_of_anonymous_volumes_is_not_compared():
    assert CONTAINER.comparable is not None
    assert CONTAINER.comparable(fields(anonymousVolumes="Leave")) == fields()
    assert fields(anonymousVolumes="Protect") == fields()
