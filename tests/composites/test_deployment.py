"""A Deployment's containers, step by step, using only the pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.composition import CHILDREN, Child, children_of, content_of, manifests_of
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError
from events.names import ResourceKey
from reconciler.composites.deployment import (
    DeploymentFields,
    Replica,
    Strategy,
    compose,
    next_replicas,
    progress,
    ready,
    summary,
    template_hash,
)

WEB = ResourceKey("default", "Deployment", "web")
GOOD, BETTER, BAD = ({"image": image} for image in ("web:1", "web:2", "none:1"))


class Fleet:
    """The containers of one Deployment, which start when the test lets them."""

    def __init__(self, spec: Fields) -> None:
        self.spec = spec
        self.object: ExternalObject | None = None
        self.counts: list[tuple[int, int]] = []

    def step(self) -> bool:
        """Apply the next content; return whether it changed anything."""
        expected = compose(WEB, self.spec, self.object)
        if self.object is not None and self.object.fields == expected:
            return False
        self._show(expected, children_of(self.object))
        return True

    def start(self, works: Callable[[str], bool]) -> None:
        """Mark every working container as ready."""
        assert self.object is not None
        images = {str(each.key): each.spec["image"] for each in manifests_of(self.object.fields)}
        self._show(
            self.object.fields,
            {
                name: Child("Converged", ready=works(image), available=works(image))
                for name, image in images.items()
            },
        )

    def settle(self, works: Callable[[str], bool] = lambda image: image.startswith("web")) -> None:
        for _ in range(100):
            if not self.step():
                return
            self.start(works)
        raise AssertionError("the rollout never settled")

    def images(self) -> list[str]:
        assert self.object is not None
        return sorted(each.spec["image"] for each in manifests_of(self.object.fields))

    def _show(self, fields: Fields, reported_children: Mapping[str, Child]) -> None:
        children = {str(name): reported_children.get(name, Child()) for name in fields[CHILDREN]}
        outputs = {CHILDREN: msgspec.to_builtins(children), **summary(fields, children)}
        self.object = ExternalObject("default.web", fields, uid="set-1", outputs=outputs)
        self.counts.append((sum(each.ready for each in children.values()), len(children)))


def spec(template: Fields, replicas: int = 3, **rest: object) -> Fields:
    fields = {"template": {"spec": template}, "replicas": replicas, **rest}
    return msgspec.to_builtins(msgspec.convert(fields, DeploymentFields))


def test_37_the_first_rollout_creates_all_containers_at_the_same_time():
    fleet = Fleet(spec(GOOD))
    assert fleet.step()
    assert fleet.images() == ["web:1"] * 3


def test_37_a_rollout_never_has_fewer_ready_containers_or_more_than_one_extra():
    fleet = Fleet(spec(GOOD))
    fleet.settle()
    fleet.counts.clear()
    fleet.spec = spec(BETTER)
    fleet.settle()
    assert fleet.images() == ["web:2"] * 3
    assert min(ready for ready, _ in fleet.counts) == 3
    assert max(count for _, count in fleet.counts) == 4
    assert fleet.object is not None
    assert ready(fleet.object.fields, fleet.object).is_ready


def test_37_a_bad_template_stalls_with_all_old_containers_and_can_be_undone():
    fleet = Fleet(spec(GOOD))
    fleet.settle()
    fleet.spec = spec(BAD)
    fleet.settle()
    assert fleet.images() == ["none:1", "web:1", "web:1", "web:1"]
    assert fleet.object is not None
    readiness = ready(fleet.object.fields, fleet.object)
    assert (readiness.is_ready, readiness.reason) == (False, "Progressing")
    assert readiness.message.startswith(
        "0 of 3 containers are available, 3 with the old template remain; waiting for d"
    )

    children = set(fleet.object.fields[CHILDREN])
    fleet.spec = spec(GOOD)
    fleet.settle()
    assert fleet.images() == ["web:1"] * 3
    assert set(fleet.object.fields[CHILDREN]) < children, "no old container was recreated"


def test_37_a_paused_deployment_follows_replicas_but_not_the_template():
    fleet = Fleet(spec(GOOD))
    fleet.settle()
    fleet.spec = spec(BETTER, 5, paused=True)
    fleet.settle()
    assert fleet.images() == ["web:1"] * 5
    assert fleet.object is not None
    readiness = ready(fleet.object.fields, fleet.object)
    assert (readiness.is_ready, readiness.reason) == (False, "Paused")
    assert readiness.message == (
        "0 of 5 containers are available, 5 with the old template remain; set spec.paused: false "
        "to roll it out"
    )
    assert fleet.object.outputs["updated"] == 0
    fleet.spec = spec(BETTER, 5)
    fleet.settle()
    assert fleet.images() == ["web:2"] * 5


def test_37_a_pause_during_a_rollout_keeps_the_containers():
    fleet = Fleet(spec(GOOD))
    fleet.settle()
    fleet.spec = spec(BETTER)
    fleet.step()
    existing = fleet.images()
    fleet.spec = spec(BETTER, paused=True)
    fleet.settle()
    assert fleet.images() == existing
    fleet.spec = spec(BETTER)
    fleet.start(lambda _image: True)
    fleet.settle()
    assert fleet.images() == ["web:2"] * 3


def test_37_an_edited_container_is_replaced_in_the_rollout_and_not_before():
    fleet = Fleet(spec(GOOD, 1))
    fleet.settle()
    assert fleet.object is not None
    [name] = fleet.object.fields[CHILDREN]
    edited = {**fleet.object.fields, CHILDREN: {name: "another declaration"}}
    deployment = msgspec.structs.replace(fleet.object, fields=edited)
    kept = compose(WEB, spec(BETTER, 1, paused=True), deployment)
    assert kept[CHILDREN] == fleet.object.fields[CHILDREN]
    assert name in compose(WEB, spec(BETTER, 1), deployment)[CHILDREN], (
        "the edited container stays until the new one is ready"
    )


def test_a_spec_that_is_too_large_for_an_event_is_refused():
    with pytest.raises(InvalidManifestError, match="split the resource"):
        compose(WEB, spec({"image": "x" * 200_000}), None)


def test_replicas_that_are_too_large_together_are_refused():
    """Each replica is declared separately, so a message of 100 KB would become 50 MB of the log."""
    large = {"image": "x", "command": ["x" * 100_000]}
    with pytest.raises(InvalidManifestError, match=r"the 500 parts take up .* in total"):
        compose(WEB, spec(large, 500), None)
    assert len(compose(WEB, spec(large, 40), None)[CHILDREN]) == 40


def test_composing_an_idle_deployment_again_changes_nothing():
    fleet = Fleet(spec(GOOD))
    fleet.settle()
    assert not fleet.step()


def test_a_stuck_container_is_named():
    fleet = Fleet(spec(GOOD, 1))
    fleet.step()
    assert fleet.object is not None
    [name] = fleet.object.fields[CHILDREN]
    failed = Child("Failed", reason="Refused", message="no such image")
    outputs = {CHILDREN: {name: msgspec.to_builtins(failed)}}
    readiness = ready(fleet.object.fields, msgspec.structs.replace(fleet.object, outputs=outputs))
    assert readiness.reason == "Stalled"
    assert readiness.message == f"0 of 1 containers are available; {name} is Failed: no such image"


def test_a_container_whose_process_has_finished_is_not_a_ready_replica():
    fleet = Fleet(spec(GOOD, 1, port=80))
    fleet.step()
    assert fleet.object is not None
    [name] = fleet.object.fields[CHILDREN]
    finished = Child("Converged", ready=True, outputs={"exitCode": 0, "address": "10.0.0.2"})
    counts = summary(fleet.object.fields, {name: finished})
    assert (counts["ready"], counts["backends"]) == (0, [])
    outputs = {CHILDREN: {name: msgspec.to_builtins(finished)}}
    readiness = ready(fleet.object.fields, msgspec.structs.replace(fleet.object, outputs=outputs))
    assert (readiness.is_ready, readiness.reason) == (False, "Progressing")


def test_the_first_pending_container_is_named_with_its_reason():
    fleet = Fleet(spec(GOOD, 2))
    fleet.step()
    assert fleet.object is not None
    first, second = fleet.object.fields[CHILDREN]
    starting = Child("Converged", reason="Starting", message="no health check has passed")
    children = {first: Child("Converged", ready=True, available=True), second: starting}
    outputs = {CHILDREN: msgspec.to_builtins(children)}
    deployment = msgspec.structs.replace(fleet.object, outputs=outputs)
    assert ready(deployment.fields, deployment).message == (
        f"1 of 2 containers are available; waiting for {second}: Starting: no health check has "
        "passed"
    )
    children[second] = Child()
    deployment = msgspec.structs.replace(
        deployment, outputs={CHILDREN: msgspec.to_builtins(children)}
    )
    assert ready(deployment.fields, deployment).message.endswith(f"waiting for {second}: Pending")


def test_37_a_new_or_newly_available_container_is_progress_and_a_pause_has_no_deadline():
    fleet = Fleet(spec(GOOD, 2))
    fleet.step()

    def mark(deployment: ExternalObject | None, **rest: object) -> str:
        assert deployment is not None
        progress_ = progress(spec(GOOD, 2, **rest), deployment)
        return "" if progress_ is None else progress_.mark

    started_mark = mark(fleet.object)
    assert started_mark
    assert fleet.object is not None
    [first, _] = fleet.object.outputs[CHILDREN]
    child = msgspec.to_builtins(Child("Degraded", reason="NotDone", message="once more"))
    other_children = {
        **fleet.object.outputs,
        CHILDREN: {**fleet.object.outputs[CHILDREN], first: child},
    }
    assert mark(msgspec.structs.replace(fleet.object, outputs=other_children)) == started_mark, (
        "no progress"
    )
    fleet.start(lambda _image: True)
    assert mark(fleet.object) not in ("", started_mark)
    assert mark(fleet.object, paused=True) == ""
    assert spec(GOOD)["progressDeadlineSeconds"] == 600
    with pytest.raises(msgspec.ValidationError, match="progressDeadlineSeconds"):
        spec(GOOD, progressDeadlineSeconds=0)


def test_a_templates_hash_covers_only_declared_fields():
    assert template_hash(spec(GOOD)["template"]) == template_hash(spec(GOOD, 9)["template"])
    assert template_hash(spec(GOOD)["template"]) != template_hash(spec(BETTER)["template"])


def test_a_container_declared_differently_is_restored_to_its_manifest():
    fleet = Fleet(spec(GOOD, 2))
    fleet.settle()
    assert fleet.object is not None
    expected = fleet.object.fields
    name = next(iter(expected[CHILDREN]))
    edited = {
        **expected,
        CHILDREN: {**expected[CHILDREN], name: "another declaration, of generation 2"},
    }
    deployment = msgspec.structs.replace(fleet.object, fields=edited)
    assert compose(WEB, fleet.spec, deployment) == expected


def test_zero_surge_and_zero_unavailable_are_refused():
    with pytest.raises(msgspec.ValidationError, match="must not both be 0"):
        spec(GOOD, strategy={"maxUnavailable": 0, "maxSurge": 0})


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12),
    st.integers(0, 6),
    st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any),
)
def test_no_step_removes_a_replica_that_must_serve(
    existing: list[tuple[str, bool]], replicas: int, limits: tuple[int, int]
):
    strategy = Strategy(*limits)
    state = [
        Replica(template, index, is_available)
        for index, (template, is_available) in enumerate(existing)
    ]
    min_ready = max(0, replicas - strategy.max_unavailable)
    for _ in range(60):
        kept = next_replicas(state, "a", replicas, strategy)
        kept_replicas = set(kept) & set(state)
        before_ready = sum(each.is_available for each in state)
        assert sum(each.is_available for each in kept_replicas) >= min(min_ready, before_ready)
        assert len(kept) <= max(len(state), replicas + strategy.max_surge)
        started = [
            each._replace(is_available=each.is_available or each.template == "a") for each in kept
        ]
        if started == state:
            break
        state = started
    assert sorted(each.template for each in state) == ["a"] * replicas


def test_the_content_of_many_equal_children_has_one_manifest():
    fields = compose(WEB, spec(GOOD, 40), None)
    assert len(fields[CHILDREN]) == 40
    assert len(fields["manifests"]) == 1
    assert content_of(manifests_of(fields))["children"] == fields[CHILDREN]
