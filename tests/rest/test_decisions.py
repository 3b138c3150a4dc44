"""What is decided of a kind of an HTTP API rests on the log: pure, without the API."""

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
from reconciler.errors import UnknownKindError
from reconciler.provider.defined_kind import defined
from reconciler.provider.kind import KIND_DEFINITION, Kind, KindRegistry
from reconciler.resource.difference import Wanted, differences
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from tests.resource.building import BLOCK, Story, every, names, only
from tests.rest.kinds import KINDS, example, manifest
from tests.rest.test_made_ids import memo

KEY = ResourceKey("default", "Address", "shop")
FIELDS: dict[str, Any] = {"addresses": ["192.0.2.2", "192.0.2.1"]}
RECORDS = [{"content": f"192.0.2.{number}", "disabled": False} for number in (1, 2)]


def address(generation: int = 1, **rest: Any) -> Kind:
    spec = deepcopy(manifest("address")["spec"])
    spec["rest"] |= rest
    if "size" in rest.get("document", {}):
        spec["fields"]["size"] = {"type": "Integer", "default": 7}
    kind = defined(KindRegistry([]), "Address", spec, generation)
    return replace(kind, provider=BLOCK.provider)  # which the tests' configuration is of


def story() -> Story:
    told = Story(kind=address(), key=KEY)
    told.declare(FIELDS, api_version="addresses/v1")
    return told


def redefined(told: Story, **rest: Any) -> list[Any]:
    told.kind = address(2, **rest)
    assert told.kind.definition is not None
    return list(told.turn(DefinitionReported(2, told.kind.definition.digest, 1, 1)))


def seen_again(told: Story, **fields: Any) -> list[Any]:
    known = told.state.observed.object
    assert known is not None
    shown = replace_struct(known, fields={**known.fields, **fields}, version=f"{known.version}+")
    return list(told.see(shown, name=known.name))


def test_what_an_object_should_have_is_in_the_log_in_the_words_of_the_api():
    told = story()
    events = [each.data for each in told.log]
    digest = told.kind.definition.digest if told.kind and told.kind.definition else ""
    assert only(SpecResolved, events).fields == {"ttl": 300, "records": RECORDS}
    action = only(ActionDecided, events).action
    assert (action.fields, action.definition) == ({"ttl": 300, "records": RECORDS}, digest)


def test_an_order_that_means_nothing_and_what_the_api_adds_are_no_difference():
    told = story()
    told.succeed()
    assert every(ActionDecided, seen_again(told, records=RECORDS[::-1], added="by the API")) == []
    assert only(ActionDecided, seen_again(told, records=RECORDS[:1])).action.operation == "Update"


def test_another_mapping_changes_objects_and_not_what_the_log_says_of_them():
    told = story()
    told.succeed()
    enabled = "= spec.addresses.map(each, {'content': each, 'disabled': true})"
    events = redefined(told, document={"ttl": "= spec.ttl", "records": enabled})
    assert names(events) == ["DefinitionObserved", "SpecResolved", "ActionDecided"]
    assert told.state.observed.object is not None
    assert told.state.observed.object.fields["records"] == RECORDS


@pytest.mark.parametrize("immutable", [(), ("size",)])
def test_where_nobody_has_looked_under_the_new_definition_nothing_is_written_or_replaced(
    immutable: tuple[str, ...],
):
    told = story()
    told.succeed()
    document = {**manifest("address")["spec"]["rest"]["document"], "size": "= spec.size"}
    assert every(ActionDecided, redefined(told, document=document, immutable=immutable)) == []
    assert every(ActionDecided, seen_again(told, size=7)) == [], "it was so all along"
    operation = only(ActionDecided, seen_again(told, size=None)).action.operation
    assert operation == ("Delete" if immutable else "Update")


def test_an_object_of_a_form_that_nobody_expected_is_a_strangers_and_ends_no_listing():
    protocol = Protocol(msgspec.convert(manifest("address")["spec"], KindDefinitionSpec))
    odd = {"name": "x.example.org.", "type": "A", "records": [1], "comments": [7], "ttl": []}
    assert protocol.is_of_kind(odd)
    seen = protocol.convert(odd)
    assert (seen.name, seen.uid, seen.labels) == ("x", None, {})
    assert seen.fields == {"ttl": [], "records": [1]}


def test_what_need_not_be_declared_is_left_to_others_and_shown_as_nothing():
    told = Story(kind=replace(memo("Link"), provider=BLOCK.provider), key=KEY)
    fields: dict[str, Any] = {"text": "one", "config": {"tags": []}}
    told.declare(fields, api_version="memos/v1")
    told.succeed()
    for text in ("two", "three"):
        drifted = only(ActionDecided, seen_again(told, text=text, remark=None)).action
        assert drifted.fields["text"] == "one"
        told.succeed()
        assert every(ActionDecided, seen_again(told, remark=None)) == []
        assert told.outcome == "Converged"
    assert every(ActionDecided, seen_again(told, remark="theirs")) == []
    told.declare({**fields, "remark": "ours"}, api_version="memos/v1")
    assert told.action.fields["remark"] == "ours"
    told.succeed()
    told.declare(fields, api_version="memos/v1")
    assert "remark" not in told.action.fields, "what we have written goes with its declaration"


def test_readiness_is_found_where_the_object_is_read_and_kept_in_the_log():
    kind = address(ready="= object.ttl < 1000", outputs={"type": {"at": "type"}})
    shown = ExternalObject("shop", {}, outputs={"ready": False, "type": "A"})
    assert kind.ready({}, shown).reason == "NotReady"
    assert kind.ready({}, replace_struct(shown, outputs={"ready": True})).is_ready
    assert kind.ready({}, replace_struct(shown, outputs={})).is_ready, "read before it was defined"


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("rest.name", {"name": {"suffix": ".example.com."}}),
        ("rest.metadata", {"metadata": {"at": "account", "form": "Text"}}),
        ("rest.uid", {"uid": "id"}),
    ],
)
def test_what_would_part_resources_from_their_objects_stays(place: str, changes: dict[str, Any]):
    key = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Address")
    told = Story(kind=KIND_DEFINITION, configs={}, key=key)
    spec = manifest("address")["spec"]
    told.declare(spec, api_version="reconciler/v1")
    told.declare({**spec, "rest": {**spec["rest"], **changes}}, api_version="reconciler/v1")
    answer = told.answers[-1]
    assert answer is not None
    assert answer.reason == "Immutable"
    assert answer.message.startswith(f"spec.{place}: cannot be changed from ")


async def test_a_provider_is_built_by_the_definition_that_an_action_rests_on():
    kinds, configurations = KindRegistry([]), Configurations()
    older = address(1)
    newer = address(2, unordered=[])
    for each in (older, newer):
        kinds.define(each)
    configurations.by_name["api"] = ProviderConfigSpec(BLOCK.provider, "http://127.0.0.1:9")
    pool = ProviderPool(kinds, configurations)
    newest = pool.get("api", "Address")
    assert pool.get("api", "Address", newer.protocol) is newest
    by_older = pool.get("api", "Address", older.protocol)
    assert by_older is not newest
    assert pool.get("api", "Address", older.protocol) is by_older
    with pytest.raises(
        UnknownKindError, match="kind 'Address': this process has not read its definition beef"
    ):
        pool.get("api", "Address", "beef")
    await pool.close()


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


def test_every_example_is_a_file_that_some_test_uses():
    used = {"address", "figure", "web-route"}
    assert {each.stem for each in KINDS.glob("*.yaml")} == used


def test_what_is_no_longer_wanted_and_shown_as_nothing_is_no_difference():
    gone = ExternalObject("shop", {"text": "one", "remark": None})
    wanted = Wanted({"text": "one"}, {}, applied_fields={"text": "one", "remark": "ours"})
    assert differences(wanted, gone, memo("Link")) == ()
    left = replace_struct(gone, fields={"text": "one", "remark": "ours"})
    assert [each.path for each in differences(wanted, left, memo("Link"))] == ["remark"]
