"""Decisions about a kind for an HTTP API depend only on the log, so the tests need no API."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

from events.external import ExternalObject
from events.intake import DefinitionReported
from events.kind_definition import KindDefinitionSpec
from events.log import ActionDecided, SpecResolved
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.providers.rest.protocol import Protocol
from reconciler.cli.explain import explain_kind
from reconciler.errors import ConfigurationError, UnknownKindError
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import KIND_DEFINITION, Kind, KindRegistry
from reconciler.resource.difference import Wanted, differences
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from tests.resource.building import BLOCK, Story, every, names, only
from tests.rest.kinds import KINDS, example, manifest
from tests.rest.test_assigned_ids import memo

KEY = ResourceKey("default", "Address", "shop")
FIELDS: dict[str, Any] = {"addresses": ["192.0.2.2", "192.0.2.1"]}
RECORDS = [{"content": f"192.0.2.{number}", "disabled": False} for number in (1, 2)]


def address(generation: int = 1, **rest: Any) -> Kind:
    spec = deepcopy(manifest("address")["spec"])
    spec["rest"] |= rest
    if "size" in rest.get("document", {}):
        spec["fields"]["size"] = {"type": "Integer", "default": 7}
    kind = build_defined_kind(KindRegistry([]), "Address", spec, generation)
    return replace(kind, provider=BLOCK.provider)  # the provider in the tests' configuration


def declared_story() -> Story:
    story = Story(kind=address(), key=KEY)
    story.declare(FIELDS, api_version="addresses/v1")
    return story


def redefine(story: Story, **rest: Any) -> list[Any]:
    story.kind = address(2, **rest)
    assert story.kind.definition is not None
    return list(story.turn(DefinitionReported(2, story.kind.definition.digest, 1, 1)))


def observe_again(story: Story, **fields: Any) -> list[Any]:
    known_object = story.state.observed.object
    assert known_object is not None
    observed_object = replace_struct(
        known_object, fields={**known_object.fields, **fields}, version=f"{known_object.version}+"
    )
    return list(story.observe(observed_object, name=known_object.name))


def test_the_log_contains_the_desired_object_in_the_apis_format():
    story = declared_story()
    events = [each.data for each in story.log]
    digest = story.kind.definition.digest if story.kind and story.kind.definition else ""
    assert only(SpecResolved, events).fields == {"ttl": 300, "records": RECORDS}
    action = only(ActionDecided, events).action
    assert (action.fields, action.definition) == ({"ttl": 300, "records": RECORDS}, digest)


def test_an_irrelevant_order_and_additional_api_fields_do_not_count_as_a_difference():
    story = declared_story()
    story.succeed()
    assert (
        every(ActionDecided, observe_again(story, records=RECORDS[::-1], added="by the API")) == []
    )
    assert (
        only(ActionDecided, observe_again(story, records=RECORDS[:1])).action.operation == "Update"
    )


def test_a_new_mapping_changes_objects_but_not_their_observations_in_the_log():
    story = declared_story()
    story.succeed()
    enabled = "= spec.addresses.map(each, {'content': each, 'disabled': true})"
    events = redefine(story, document={"ttl": "= spec.ttl", "records": enabled})
    assert names(events) == ["DefinitionObserved", "SpecResolved", "ActionDecided"]
    assert story.state.observed.object is not None
    assert story.state.observed.object.fields["records"] == RECORDS


@pytest.mark.parametrize("immutable", [(), ("size",)])
def test_nothing_is_written_or_replaced_before_a_read_with_the_new_definition(
    immutable: tuple[str, ...],
):
    story = declared_story()
    story.succeed()
    document = {**manifest("address")["spec"]["rest"]["document"], "size": "= spec.size"}
    assert every(ActionDecided, redefine(story, document=document, immutable=immutable)) == []
    assert every(ActionDecided, observe_again(story, size=7)) == [], "it was like that all along"
    operation = only(ActionDecided, observe_again(story, size=None)).action.operation
    assert operation == ("Delete" if immutable else "Update")


def test_an_object_with_an_unexpected_form_is_foreign_and_does_not_break_a_listing():
    protocol = Protocol(msgspec.convert(manifest("address")["spec"], KindDefinitionSpec))
    odd = {"name": "x.example.org.", "type": "A", "records": [1], "comments": [7], "ttl": []}
    assert protocol.is_of_kind(odd)
    observed_object = protocol.convert(odd)
    assert (observed_object.name, observed_object.uid, observed_object.labels) == ("x", None, {})
    assert observed_object.fields == {"ttl": [], "records": [1]}


def redeclare_text(story: Story, fields: dict[str, Any]) -> dict[str, Any]:
    story.declare({**fields, "text": "more"}, api_version="memos/v1")
    return story.action.fields


def test_an_undeclared_optional_field_is_left_to_other_clients():
    story = Story(kind=replace(memo("Link"), provider=BLOCK.provider), key=KEY)
    fields: dict[str, Any] = {"text": "one", "config": {"tags": []}}
    story.declare(fields, api_version="memos/v1")
    story.succeed()
    for text in ("two", "three"):
        drifted = only(ActionDecided, observe_again(story, text=text, remark=None)).action
        assert drifted.fields["text"] == "one"
        story.succeed()
        assert every(ActionDecided, observe_again(story, remark=None)) == []
        assert story.outcome == "Converged"
    assert every(ActionDecided, observe_again(story, remark="theirs")) == []
    story.declare({**fields, "remark": "ours"}, api_version="memos/v1")
    assert story.action.fields["remark"] == "ours"
    story.succeed()
    story.declare(fields, api_version="memos/v1")
    assert story.action.fields["remark"] is None, "what we wrote is removed with its declaration"
    story.succeed()
    assert "remark" not in redeclare_text(story, fields), "it is removed once"


def test_readiness_is_evaluated_when_an_object_is_read_and_stored_in_the_log():
    kind = address(ready="= object.ttl < 1000", outputs={"type": {"at": "type"}})
    observed_object = ExternalObject("shop", {}, outputs={"ready": False, "type": "A"})
    assert kind.ready({}, observed_object).reason == "NotReady"
    assert kind.ready({}, replace_struct(observed_object, outputs={"ready": True})).is_ready
    assert kind.ready({}, replace_struct(observed_object, outputs={})).is_ready, (
        "read before it was defined"
    )


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("rest.name", {"name": {"suffix": ".example.com."}}),
        ("rest.metadata", {"metadata": {"at": "account", "form": "Text"}}),
        ("rest.uid", {"uid": "id"}),
    ],
)
def test_a_field_that_connects_resources_to_their_objects_is_immutable(
    path: str, changes: dict[str, Any]
):
    key = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Address")
    story = Story(kind=KIND_DEFINITION, configs={}, key=key)
    spec = manifest("address")["spec"]
    story.declare(spec, api_version="reconciler/v1")
    story.declare({**spec, "rest": {**spec["rest"], **changes}}, api_version="reconciler/v1")
    reply = story.replies[-1]
    assert reply is not None
    assert reply.reason == "Immutable"
    assert reply.message.startswith(f"spec.{path}: cannot be changed from ")


async def test_a_provider_is_built_from_the_definition_of_the_action():
    kinds, configurations = KindRegistry([]), Configurations()
    older = address(1)
    newer = address(2, unordered=[])
    for each in (older, newer):
        kinds.define(each)
    configurations.by_name["api"] = ProviderConfigSpec(BLOCK.provider, "http://127.0.0.1:9")
    pool = ProviderPool(kinds, configurations)
    newest = pool.get("api", "Address")
    assert pool.get("api", "Address", newer.protocol) is newest
    older_provider = pool.get("api", "Address", older.protocol)
    assert older_provider is not newest
    assert pool.get("api", "Address", older.protocol) is older_provider
    with pytest.raises(
        UnknownKindError, match="kind 'Address': this process has not read its definition beef"
    ):
        pool.get("api", "Address", "beef")
    await pool.close()
    with pytest.raises(ConfigurationError, match="this process is stopping"):
        pool.get("api", "Address")


def test_every_example_is_explained_field_by_field():
    for name in ("address", "figure", "web-route"):
        assert all(each.about for each in explain_kind(example(name)).spec)
    fields = {each.field: each for each in explain_kind(memo("Page")).spec}
    nested = ["config.tags", "config.pinned", "config.options"]
    assert [*fields] == ["text", "config", *nested, "remark"]
    assert (fields["remark"].required, fields["remark"].type) == (False, "string")
    assert fields["config.tags"].type == "list of string"
    assert fields["config.options"].type == "map of integer"
    assert (fields["config"].required, fields["config.pinned"].default) == (True, False)


def test_every_example_file_is_used_by_a_test():
    used = {"address", "figure", "web-route"}
    assert {each.stem for each in KINDS.glob("*.yaml")} == used


def test_an_undeclared_field_that_reads_as_null_does_not_count_as_a_difference():
    deleted_object = ExternalObject("shop", {"text": "one", "remark": None})
    desired = Wanted({"text": "one"}, {}, applied_fields={"text": "one", "remark": "ours"})
    assert differences(desired, deleted_object, memo("Link")) == ()
    remaining_object = replace_struct(deleted_object, fields={"text": "one", "remark": "ours"})
    assert [each.path for each in differences(desired, remaining_object, memo("Link"))] == [
        "remark"
    ]
