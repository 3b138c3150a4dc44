"""The kind registry, and the limits of the built-in kinds' fields."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from events.documents import Problem, read_documents
from events.manifest import Fields, InvalidManifestError
from infra.providers.certificates.spec import seconds_of
from infra.providers.file import FILE
from reconciler.provider.kind import KindRegistry, installed_kinds
from shapes_api.kinds.shapes import SHAPE


def test_a_kind_installed_after_the_start_has_its_own_hint() -> None:
    installed, now = ["Shape"], datetime(2026, 1, 2, tzinfo=UTC)
    kinds = KindRegistry([SHAPE], installed=lambda: list(installed))
    assert (
        kinds.missing_hint(now) == "install its package where the roles run, then restart the roles"
    )
    installed.append("Blob")
    assert "Blob" not in kinds.missing_hint(now)  # the previous result is cached for a while
    now += timedelta(seconds=60)
    assert (
        kinds.missing_hint(now)
        == "restart the roles, because these kinds were installed after they started: Blob"
    )


def test_the_registry_lists_its_providers_and_their_kinds() -> None:
    assert KindRegistry([SHAPE]).providers == {"shapes": ("Shape",)}
    assert KindRegistry([]).providers == {}


PROVIDER = {"provider": "x", "endpoint": "http://x"}
RESTARTS = {"restart": "on-failure"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Certificate", {"dnsNames": ["a.test"], "issuer": "x", "duration": "9000000d"}),
        ("Certificate", {"dnsNames": ["a.test"], "issuer": "x", "duration": "999999999h"}),
        ("Certificate", {"dnsNames": ["a.test"], "issuer": "x", "renewBefore": "9000000d"}),
        ("Issuer", {"ownCa": {"commonName": "x", "duration": "9000000d"}}),
        ("DatabaseRole", {"validUntil": "0001-01-01T00:00:00+14:00"}),
        ("DatabaseRole", {"validUntil": "9999-12-31T23:59:59-12:00"}),
        ("Consumer", {"deliverPolicy": "by_start_time", "startTime": "0001-01-01T00:00:00+01:00"}),
        ("ProviderConfig", {"provider": "x", "endpoint": "http://x", "resyncSeconds": 1e12}),
        ("Deployment", {"template": {}, "progressDeadlineSeconds": 1e18}),
        ("ProviderConfig", {**PROVIDER, "deletionGuard": {"maxCount": 2**70}}),
        ("ProviderConfig", {**PROVIDER, "lossGuard": {"minCount": 2**70}}),
        ("Container", {"image": "x", "memoryBytes": 2**63}),
        ("Container", {"image": "x", **RESTARTS, "maxRestarts": 2**31}),
        (
            "Container",
            {"image": "x", "mounts": [{"type": "tmpfs", "target": "/t", "sizeBytes": 2**63}]},
        ),
        ("Container", {"image": "x", "healthCheck": {"command": ["x"], "retries": 2**31}}),
        ("Stream", {"subjects": ["a.>"], "maxAgeSeconds": 1e-9}),
        ("Stream", {"subjects": ["a.>"], "duplicateWindowSeconds": 1e-9}),
        ("Bucket", {"ttlSeconds": 1e-9}),
        ("Consumer", {"stream": "x", "ackWaitSeconds": 1e-9}),
        ("Consumer", {"stream": "x", "maxDeliver": 3, "backoffSeconds": [1e-9]}),
    ],
)
def test_a_number_out_of_range_is_refused_when_declared(kind: str, fields: Fields) -> None:
    with pytest.raises(InvalidManifestError, match=r"spec[.:]"):
        installed_kinds()[kind].check_declared(fields)


@pytest.mark.parametrize("longest", ["999999999s", "9999999m", "999999h", "99999d"])
def test_the_longest_durations_end_before_the_year_9999(longest: str) -> None:
    fields = {"dnsNames": ["a.test"], "issuer": "x", "duration": longest}
    spec = installed_kinds()["Certificate"].check_declared(fields)
    end = datetime(2100, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds_of(spec["duration"]))
    assert end.year < 9999


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ProviderConfig", {**PROVIDER, "deletionGuard": {"maxCount": 1_000_000_000}}),
        (
            "Container",
            {"image": "x", "memoryBytes": 2**63 - 1, **RESTARTS, "maxRestarts": 2**31 - 1},
        ),
        ("Stream", {"subjects": ["a.>"], "maxAgeSeconds": 0.001}),
        ("Stream", {"subjects": ["a.>"], "maxAgeSeconds": 0}),
        ("Bucket", {"ttlSeconds": 0.001}),
        ("Consumer", {"stream": "x", "ackWaitSeconds": 0.001}),
    ],
)
def test_minimum_and_maximum_numbers_are_accepted(kind: str, fields: Fields) -> None:
    assert installed_kinds()[kind].check_declared(fields)


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan"])
def test_a_number_that_json_cannot_represent_is_refused(number: str) -> None:
    """It would be stored as null."""
    text = (
        "apiVersion: files/v1\nkind: File\nmetadata: {name: f}\n"
        f"spec: {{content: x, values: {{a: {number}}}}}\n"
    )
    (problem,) = read_documents("f.yaml", text, "default")
    assert isinstance(problem, Problem)
    assert problem.message.startswith("a manifest must not contain .inf or .nan")


def test_a_file_with_unclosed_placeholders_is_checked_in_linear_time() -> None:
    """All tenants share the decider that checks it. In quadratic time, this would take an hour."""
    fields = {"content": "${" * 500_000, "values": {"A": "1"}}
    assert FILE.check_declared(fields)["content"] == fields["content"]


def test_the_size_of_a_rendered_file_is_checked_before_it_is_rendered() -> None:
    """A declaration of 900 KB would fill 60 GiB of the decider's memory."""
    with pytest.raises(InvalidManifestError, match="must be at most 1048576 bytes"):
        FILE.check_declared({"content": "${A}" * 150_000, "values": {"A": "x" * 400_000}})


def test_a_file_does_not_grow_by_repeating_one_value() -> None:
    """A 4 KB declaration would cause events of a megabyte."""
    with pytest.raises(InvalidManifestError, match="larger, more than the limit of 65536"):
        FILE.check_declared({"content": "${A}" * 500, "values": {"A": "x" * 1_800}})
    FILE.check_declared({"content": "x" * 300_000 + "${A}" * 30, "values": {"A": "x" * 1_800}})
