"""Declarations that are accepted or refused, and the reasons: scenarios 26 and 27."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from events.envelope import decode_log, encode_log
from events.intake import Declared, IntakeData, TimerFired, UsersReported, Withdrawn
from events.log import ResourceEvent, SpecDeclared, SpecWithdrawn
from events.manifest import REASON_ANNOTATION, Fields, Manifest, Metadata
from events.names import ResourceKey
from reconciler.provider.kind import KIND_DEFINITION, PROVIDER_CONFIG, Kind
from reconciler.resource.decide import decide
from reconciler.resource.evolve import fold
from reconciler.resource.state import NEW
from reconciler.resource.turn import Command
from tests.resource.building import (
    CONFIG,
    SHARED,
    Story,
    converged_story,
    every,
    manifest,
    names,
    only,
    provider_config_story,
)


def test_the_same_message_twice_is_one_generation():
    story = Story()
    command = story.command(Declared(manifest()), message_id="a")
    story.process([command])
    assert story.process([command]) == []
    assert story.reply.reason == "Duplicate"
    assert story.state.desired.generation == 1


def test_the_same_message_published_again_late_is_one_generation():
    story = Story()
    story.process([story.command(Declared(manifest({"color": "Red"})), message_id="a")])
    story.process([story.command(Declared(manifest({"color": "Blue"})), message_id="b")])
    repeat = story.command(Declared(manifest({"color": "Red"})), message_id="a")
    assert story.process([repeat]) == []
    assert (story.reply.accepted, story.reply.reason) == (True, "Duplicate")


def test_equal_message_ids_from_two_publishers_are_not_duplicates():
    story = Story()
    red, blue = Declared(manifest({"color": "Red"})), Declared(manifest({"color": "Blue"}))
    story.process([story.command(red, message_id="1", actor="one")])
    story.process([story.command(blue, message_id="1", actor="two")])
    assert story.reply.reason == "Accepted"
    assert story.state.desired.generation == 2


def test_a_declaration_that_arrives_after_a_newer_one_is_refused():
    story = Story()
    first = story.command(Declared(manifest({"color": "Red"})))
    second = story.command(Declared(manifest({"color": "Blue"})))
    story.process([second])
    assert names(story.process([first])) == ["DeclarationSuperseded"]
    assert (story.reply.accepted, story.reply.reason) == (False, "Superseded")


def test_a_repeat_of_a_late_declaration_is_a_duplicate():
    story = Story()
    late = story.command(Declared(manifest({"color": "Red"})), message_id="late")
    story.declare({"color": "Blue"})
    story.process([late])
    assert story.process([republish(story, late)]) == []
    assert story.reply.reason == "Duplicate"


def republish(story: Story, command: Command) -> Command:
    """Return the same message at another intake position, as after a retry of its publisher."""
    return story.command(command.data, message_id=command.message_id, actor=command.actor)


def with_first_position(command: Command, first: Command) -> Command:
    return replace(command, first_position=first.position)


def test_a_repeat_of_a_declaration_without_changes_reverts_nothing():
    story = converged_story()
    again = story.command(Declared(manifest()), message_id="again")
    assert story.process([again]) == []
    story.declare({"color": "Blue"})
    copy = republish(story, again)
    decision = decide(story.state, [copy], story.context)
    assert decision.repeats == [copy], "its first position is looked up in the intake"
    assert story.process([with_first_position(copy, again)]) == []
    assert (story.reply.accepted, story.reply.reason) == (True, "Duplicate")


def test_a_repeat_whose_first_copy_has_not_been_decided_yet_is_remembered():
    """Another decider has the first copy, so the content does not show that a repeat is old."""
    story = Story()
    first = story.command(Declared(manifest({"color": "Red"})), message_id="first")
    story.declare({"color": "Blue"})
    copy = with_first_position(republish(story, first), first)
    assert names(story.process([copy])) == ["DeclarationSuperseded"]
    assert story.reply.reason == "Duplicate"
    assert story.process([republish(story, first)]) == []
    assert story.reply.reason == "Duplicate"


def test_a_repeat_of_a_withdrawal_that_had_no_effect_withdraws_nothing():
    story = Story()
    early = story.command(Withdrawn(), message_id="early")
    story.process([early])
    story.declare()
    copy = republish(story, early)
    assert decide(story.state, [copy], story.context).repeats == [copy]
    assert story.process([with_first_position(copy, early)]) == []
    assert story.state.desired.is_declared


def test_a_message_after_the_first_copy_is_newer_than_an_earlier_decided_repeat():
    """A suspended decider has the first copies, and another one gets the repeat."""
    story = converged_story()
    first = story.command(Withdrawn(), message_id="first")
    newer = story.command(Declared(manifest({"color": "Blue"})))
    story.process([with_first_position(republish(story, first), first)])
    assert not story.state.desired.is_declared
    story.process([newer])
    assert (story.reply.reason, story.state.desired.is_declared) == ("Accepted", True)
    assert story.process([first]) == []
    assert story.reply.reason == "Duplicate"


def test_a_return_to_an_earlier_declaration_is_accepted():
    story = converged_story()
    story.declare({"color": "Blue"})
    back = story.command(Declared(manifest()))
    story.process([with_first_position(back, back)])
    assert (story.reply.reason, story.reply.generation) == ("Accepted", 3)


def test_a_first_declaration_needs_no_read_of_the_intake():
    story = converged_story()
    new = story.command(Declared(manifest({"color": "Blue"})))
    assert decide(story.state, [new], story.context).repeats == []
    assert decide(NEW, [new], story.context).repeats == []


def test_an_equal_declaration_is_not_a_new_generation():
    story = converged_story()
    assert story.declare() == []
    assert (story.reply.accepted, story.reply.reason) == (True, "Unchanged")
    assert story.reply.generation == 1


@pytest.mark.parametrize(
    "changed",
    [
        Declared(manifest({"color": "Blue"})),
        Declared(manifest(labels={"team": "a"})),
        Declared(manifest(annotations={"note": "x"})),
        Declared(manifest(policy={"paused": True})),
    ],
)
def test_any_change_is_a_new_generation(changed: Declared):
    story = converged_story()
    story.turn(changed)
    assert (story.reply.reason, story.reply.generation) == ("Accepted", 2)


def test_a_reason_is_recorded_but_is_not_by_itself_a_new_generation():
    story = Story()
    story.turn(Declared(manifest(), reason="CHG-1"))
    assert only(SpecDeclared, _log(story)).reason == "CHG-1"
    assert story.turn(Declared(manifest(), reason="CHG-2")) == []
    assert story.reply.reason == "Unchanged"
    story.turn(Withdrawn(reason="CHG-3"))
    assert only(SpecWithdrawn, _log(story)).reason == "CHG-3"


def test_the_annotation_provides_the_reason_if_the_message_has_none():
    story = Story()
    why = {REASON_ANNOTATION: "CHG-1", "team": "a"}
    story.turn(Declared(manifest(annotations=why)))
    declared = only(SpecDeclared, _log(story))
    assert (declared.reason, declared.annotations) == ("CHG-1", {"team": "a"})
    assert story.turn(Declared(manifest(annotations={**why, REASON_ANNOTATION: "CHG-2"}))) == []
    story.turn(Declared(manifest({"color": "Blue"}, annotations=why), reason="CHG-3"))
    assert every(SpecDeclared, _log(story))[-1].reason == "CHG-3"


def _log(story: Story) -> list[ResourceEvent]:
    return [event.data for event in story.log]


def test_withdrawing_an_undeclared_resource_is_not_recorded():
    story = Story()
    assert story.withdraw() == []
    assert story.reply.reason == "Unchanged"


def test_a_withdrawal_twice_is_one_generation():
    story = converged_story()
    command = story.command(Withdrawn(), message_id="w")
    story.process([command])
    assert story.process([command]) == []
    assert story.withdraw() == []
    assert story.state.desired.generation == 2


@pytest.mark.parametrize(("expected", "accepted"), [(0, False), (1, True), (2, False)])
def test_an_expected_generation_is_checked(expected: int, accepted: bool):
    story = converged_story()
    story.declare({"color": "Blue"}, expected=expected)
    assert story.reply.accepted is accepted
    story = converged_story()
    story.withdraw(expected)
    assert story.reply.accepted is accepted
    assert accepted or story.reply.reason == "StaleGeneration"


def test_expected_generation_0_means_that_the_resource_does_not_exist_yet():
    story = Story()
    story.declare(expected=0)
    assert story.reply.accepted
    story.declare({"color": "Blue"}, expected=0)
    assert not story.reply.accepted
    assert story.state.desired.generation == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (manifest({"colour": "Red"}), "colour"),
        (manifest({"color": 1}), "color"),
        (manifest(api_version="tests/v2"), "apiVersion"),
        (manifest(policy={"mode": "Sometimes"}), "mode"),
        (manifest(config="a.b"), "providerConfigRef"),
        (manifest(key=ResourceKey("default", "Block", "Bar")), "its subject is for"),
        (manifest(annotations={"reconciler/external-name": "Forbidden"}), "another name"),
        (manifest(labels={"reconciler/owner": "x"}), "sets 'reconciler/owner'"),
        (manifest(labels={"reconciler/key": "x"}), "sets 'reconciler/key'"),
        (Manifest("tests/v1", "Block", Metadata("a.*")), "not allowed"),
    ],
)
def test_an_invalid_manifest_is_refused_with_the_reason_and_no_event(bad: Manifest, message: str):
    story = Story()
    assert story.turn(Declared(bad)) == []
    assert (story.reply.accepted, story.reply.reason) == (False, "Invalid")
    assert message in story.reply.message


def test_an_invalid_manifest_does_not_affect_the_valid_ones_in_its_batch():
    story = Story()
    story.turn(
        Declared(manifest({"color": 1})),
        Declared(manifest({"color": "Red"})),
        Declared(manifest({"colour": "Red"})),
    )
    reasons = [None if each is None else each.reason for each in story.replies]
    assert reasons == ["Invalid", "Accepted", "Invalid"]
    assert story.action.fields == {"color": "Red"}


def test_an_unknown_kind_is_refused():
    story = Story(kind=None)
    assert story.declare() == []
    assert (story.reply.accepted, story.reply.reason) == (False, "UnknownKind")
    assert "'Block'" in story.reply.message


def test_a_resource_whose_kind_is_no_longer_registered_is_held():
    story = converged_story()
    kind, story.kind = story.kind, None
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "UnknownKind")
    story.kind = kind
    story.wake()
    assert story.action.operation == "Delete"


@pytest.mark.parametrize(
    "moved",
    [
        Declared(manifest(annotations={"reconciler/external-name": "Other"})),
        Declared(manifest(config="other")),
    ],
)
def test_a_resource_cannot_move_while_its_object_exists(moved: Declared):
    story = converged_story(configs={CONFIG: SHARED, "other": SHARED})
    assert story.turn(moved) == []
    assert story.reply.reason == "Immutable"
    story.withdraw()
    story.turn(moved)
    assert story.reply.reason == "Immutable"
    story.succeed()
    story.turn(moved)
    assert story.reply.reason == "Accepted"
    assert story.action.operation == "Create"


def test_a_resource_cannot_move_while_its_object_is_being_created():
    story = Story()
    story.declare()
    story.declare(annotations={"reconciler/external-name": "Other"})
    assert story.reply.reason == "Immutable"


def test_a_resource_is_held_until_its_provider_config_exists():
    story = Story(configs={})
    story.declare()
    assert story.idle
    assert (story.outcome, story.reason) == ("Held", "ProviderConfigMissing")
    assert story.wake() == []
    story.configs[CONFIG] = SHARED
    assert names(story.turn(TimerFired("ConfigChanged"))) == ["ActionDecided"]
    story.succeed()
    assert story.outcome == "Converged"


def test_a_withdrawn_resource_without_its_provider_config_is_held():
    story = converged_story()
    story.configs.clear()
    story.withdraw()
    assert story.idle
    assert story.outcome == "Held"


OTHER_PROVIDER = replace(SHARED, provider="zones")


def test_a_resource_with_another_providers_configuration_is_held():
    story = Story(configs={CONFIG: OTHER_PROVIDER, "right": SHARED})
    assert names(story.declare()) == ["SpecDeclared", "OutcomeRecorded"]
    assert (story.outcome, story.reason) == ("Held", "WrongProvider")
    assert story.state.outcome is not None
    message = story.state.outcome.message
    assert f"{CONFIG!r} has provider 'zones'" in message
    assert "Block requires 'tests'" in message
    assert "providerConfigRef" in message
    assert story.wake(3600) == []
    assert "ActionDecided" in names(story.declare(config="right"))


def test_a_resource_continues_when_its_configuration_has_the_right_provider():
    story = Story(configs={CONFIG: OTHER_PROVIDER})
    story.declare()
    story.configs[CONFIG] = SHARED
    assert names(story.turn(TimerFired("ConfigChanged"))) == ["ActionDecided"]


def test_a_resource_without_an_object_is_deleted_despite_the_wrong_provider():
    story = Story(configs={CONFIG: OTHER_PROVIDER})
    story.declare()
    assert "ActionDecided" not in names(story.withdraw())
    assert (story.outcome, story.idle) == ("Deleted", True)
    assert story.wake(3600) == []


def test_an_object_is_kept_while_its_configuration_has_another_provider():
    story = converged_story()
    story.configs[CONFIG] = OTHER_PROVIDER
    story.withdraw()
    assert story.idle
    assert (story.outcome, story.reason) == ("Held", "WrongProvider")
    assert story.state.outcome is not None
    assert "stay unchanged" in story.state.outcome.message
    story.configs[CONFIG] = SHARED
    story.turn(TimerFired("ConfigChanged"))
    assert story.action.operation == "Delete"


@pytest.mark.parametrize("withdrawn", [False, True])
def test_an_action_is_not_repeated_in_another_providers_api(withdrawn: bool):
    story = Story()
    story.declare()
    story.configs[CONFIG] = OTHER_PROVIDER
    events = story.fail("Unknown")
    if withdrawn:
        events += story.withdraw()
    events += story.wake(3600)
    assert not {"RetryScheduled", "ActionRetried", "LookupDecided"} & {*names(events)}
    assert (story.outcome, story.reason) == ("Held", "WrongProvider")
    story.configs[CONFIG] = SHARED
    story.turn(TimerFired("ConfigChanged"))
    story.wake(3600)
    assert story.flight.attempt == 2


def test_a_provider_config_converges_immediately():
    story = provider_config_story()
    spec = Manifest(
        "reconciler/v1",
        "ProviderConfig",
        Metadata("default", "system"),
        {"provider": "tests", "endpoint": "http://localhost"},
    )
    story.turn(Declared(spec))
    assert story.outcomes() == [("Converged", 1)]
    assert story.state.desired.spec is not None
    assert story.state.desired.spec.fields == {"provider": "tests", "endpoint": "http://localhost"}
    assert story.wake() == []
    story.withdraw()
    story.turn(UsersReported(2, 0))
    assert story.outcomes()[-1] == ("Deleted", 2)
    assert story.wake() == []


PROVIDERS = {"records": ("Record",), "shapes": ("Shape", "Volume")}


def config_of_provider(provider: str, *kinds: str) -> Declared:
    spec: Fields = {"provider": provider, "endpoint": "http://localhost"}
    if kinds:
        spec["kinds"] = list(kinds)
    return Declared(
        Manifest("reconciler/v1", "ProviderConfig", Metadata("default", "system"), spec)
    )


def test_a_provider_without_a_kind_is_refused_and_the_message_lists_the_known_ones():
    story = provider_config_story()
    story.providers = PROVIDERS
    story.turn(config_of_provider("resource"))
    assert (story.reply.accepted, story.reply.reason) == (False, "Invalid")
    assert "'resource'" in story.reply.message
    assert "records, shapes" in story.reply.message
    assert story.outcomes() == []
    story.turn(config_of_provider("shapes"))
    assert story.outcomes() == [("Converged", 1)]


def test_a_kind_from_another_provider_is_refused_and_the_message_lists_the_known_ones():
    story = provider_config_story()
    story.providers = PROVIDERS
    story.turn(config_of_provider("shapes", "Shape", "Record"))
    assert (story.reply.accepted, story.reply.reason) == (False, "Invalid")
    assert "provider 'shapes' has no kind 'Record'" in story.reply.message
    assert "Shape, Volume" in story.reply.message
    story.turn(config_of_provider("shapes", "Volume"))
    assert story.outcomes() == [("Converged", 1)]


def test_a_configuration_is_held_if_its_provider_is_no_longer_installed():
    story = provider_config_story()
    story.turn(config_of_provider("shapes"))
    story.providers = {"records": ("Record",)}
    story.wake()
    assert story.outcomes()[-1] == ("Held", 1)
    assert story.state.outcome is not None
    assert story.state.outcome.reason == "UnknownProvider"
    story.providers = PROVIDERS
    story.wake()
    assert story.outcomes()[-1] == ("Converged", 1)


def test_a_provider_config_with_an_unknown_field_is_refused():
    story = provider_config_story()
    spec = {"provider": "tests", "endpoint": "http://localhost", "retries": 3}
    story.turn(
        Declared(Manifest("reconciler/v1", "ProviderConfig", Metadata("default", "system"), spec))
    )
    assert story.reply.reason == "Invalid"


@pytest.mark.parametrize(
    "wrong",
    [
        {"resyncSeconds": 0},
        {"resyncSeconds": 1e300},
        {"retry": {"initialSeconds": -1}},
        {"retry": {"maxSeconds": 0}},
        {"limits": {"concurrency": 0}},
        {"limits": {"concurrency": -1}},
        {"limits": {"requestTimeoutSeconds": 0}},
        {"limits": {"pageSize": 0}},
        {"scope": {"namespace": "a.b"}},
        {"scope": {"namespace": "b\n"}},
        {"deletionGuard": {"maxPercent": 101}},
        {"deletionGuard": {"maxCount": -1}},
        {"consistencyGraceSeconds": -1},
    ],
    ids=str,
)
def test_a_provider_config_that_cannot_work_is_refused(wrong: dict[str, object]):
    """It would cause a hot loop, or block or crash a worker."""
    story = provider_config_story()
    spec = {"provider": "tests", "endpoint": "http://localhost", **wrong}
    story.turn(
        Declared(Manifest("reconciler/v1", "ProviderConfig", Metadata("default", "system"), spec))
    )
    assert (story.reply.accepted, story.reply.reason) == (False, "Invalid")
    assert next(iter(wrong)) in story.reply.message


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://joe:hunter2@api.example.com",
        "joe:hunter2@api.example.com/v1",
        "https://api.example.com/v1?token=hunter2",
        "https://api.example.com/#hunter2",
        "https://hunter2@api.example.com",
        "nats://hunter2@bus:4222",
        "postgres://hunter2@db:5432",
        "postgresql://joe:hunter2@db/orders",
        "postgresql://:hunter2@db/orders",
        "postgresql://joe%3Ahunter2@db/orders",
        "postgresql://joe@db@hunter2/orders",
        "postgresql://joe@db/orders?password=hunter2",
        "POSTGRESQL://hunter2@db",
    ],
)
def test_an_endpoint_that_may_hold_a_secret_does_not_enter_the_log(endpoint: str):
    story = provider_config_story()
    spec = {"provider": "tests", "endpoint": endpoint}
    wrong = Manifest("reconciler/v1", "ProviderConfig", Metadata("default", "system"), spec)
    assert story.turn(Declared(wrong)) == []
    assert story.reply.reason == "Invalid"
    assert "credentialsRef" in story.reply.message
    assert "hunter2" not in story.reply.message


@pytest.mark.parametrize(
    "endpoint",
    ["postgresql://reconciler@db:5432/postgres", "postgresql://app-1@%2Frun%2Fpostgresql"],
)
def test_a_postgresql_role_is_not_a_secret(endpoint: str):
    story = provider_config_story()
    spec = {"provider": "tests", "endpoint": endpoint}
    story.turn(
        Declared(Manifest("reconciler/v1", "ProviderConfig", Metadata("default", "system"), spec))
    )
    assert story.reply.accepted


@pytest.mark.parametrize(
    "data",
    [Declared(manifest()), Withdrawn(), TimerFired("Sweep")],
    ids=["declared", "withdrawn", "timer"],
)
def test_only_declarations_and_withdrawals_get_a_reply(data: IntakeData):
    story = Story()
    story.turn(data)
    assert (story.replies[0] is None) is isinstance(data, TimerFired)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (
            KIND_DEFINITION,
            {
                "apiVersion": "badges/v1",
                "provider": "badges",
                "over": "Shape",
                "fields": {"shade": {"to": "color", "normalize": ["Title"], "values": ["Red"]}},
            },
        ),
        (PROVIDER_CONFIG, {"provider": "x", "endpoint": "http://x", "namespaces": ["billing"]}),
    ],
)
def test_an_unchanged_list_after_a_restart_is_not_a_new_generation(kind: Kind, fields: Fields):
    story = Story(kind=kind, configs={}, key=ResourceKey("system", kind.name, "Any"))
    story.declare(fields, api_version="reconciler/v1")
    assert story.outcomes() == [("Converged", 1)]
    story.state = fold(decode_log(encode_log(each)) for each in story.log)
    assert story.declare(fields, api_version="reconciler/v1") == []
    assert story.reply.reason == "Unchanged"


def test_a_refusal_does_not_quote_a_long_declaration():
    """When quoted, 470 KiB become more than a megabyte, which a bus with default limits refuses."""
    story = Story()
    quoted = replace(manifest(), api_version="\U0010ffff" * 118_000)
    story.process([story.command(Declared(quoted))])
    assert not story.reply.accepted
    assert story.reply.message.startswith("apiVersion '\\U0010ffff")
    assert len(msgspec.json.encode(story.reply)) < 64 * 1024
