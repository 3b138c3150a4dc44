"""Generated requests, valid or not, get the responses that the contract specifies."""

# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# (schemathesis' decorators are not typed)

from pathlib import Path
from typing import Any

import schemathesis
import yaml
from hypothesis import settings
from schemathesis import CheckContext, Response
from schemathesis.config import SchemathesisConfig

import shapes_api

pytest_plugins = ("schemathesis.pytest.plugin",)
"""Loaded only for this file, because its imports cost 2 s of CPU in each process."""

CONTRACT = Path(shapes_api.__file__).with_name("openapi.yaml")

# Refusals that depend on earlier requests, which a schema cannot express.
STATE_DEPENDENT_PROBLEMS = {"name-taken", "no-such-shape", "key-used-otherwise", "version-mismatch"}

CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {
            "negative_data_rejection": {
                "expected-statuses": [400, 404, 405, 409, 410, 412, 422],
            },
            "positive_data_acceptance": {"expected-statuses": ["2xx", 404, 409, 412, 422]},
        }
    }
)


def contract_with_rules_from_descriptions() -> dict[str, Any]:
    """Return the contract with rules from its descriptions as schemas."""
    document: dict[str, Any] = yaml.safe_load(CONTRACT.read_text())
    listing = document["paths"]["/shapes"]
    shape = document["paths"]["/shapes/{name}"]
    name_pattern = shape["parameters"][0]["schema"]["pattern"]
    document["components"]["schemas"]["Shape"]["properties"]["name"]["pattern"] = name_pattern
    query = {parameter["name"]: parameter for parameter in listing["get"]["parameters"]}
    query["label"]["schema"]["items"]["pattern"] = "^[a-z]{1,9}=[a-z]{0,9}$"
    query["continue"]["schema"]["enum"] = [""]
    refused = {"description": "Not a request that the service can read."}
    for operation in (listing["get"], listing["post"], shape["get"], shape["put"], shape["delete"]):
        operation["responses"] |= {"400": refused, "405": refused}
    shape["delete"]["responses"] |= {"422": refused}
    return document


def check_errors_are_problems(
    _context: CheckContext, response: Response, case: schemathesis.Case[Any]
) -> None:
    """Check that errors are problem documents, and valid requests fail only due to earlier ones."""
    if response.status_code < 400:
        return
    assert response.headers["content-type"] == ["application/problem+json"]
    problem = response.json()
    assert problem.keys() == {"type", "title", "status", "detail"}
    assert problem["status"] == response.status_code
    if case.meta is not None and case.meta.generation.mode.is_positive:
        kind = problem["type"].rsplit(":", 1)[1]
        has_other_name = "the body has the name" in problem["detail"]
        assert kind in STATE_DEPENDENT_PROBLEMS or has_other_name, problem


contract = schemathesis.openapi.from_dict(contract_with_rules_from_descriptions(), config=CONFIG)


@contract.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True)
def test_generated_requests_get_the_responses_that_the_contract_specifies(
    case: schemathesis.Case[Any], service_url: str
) -> None:
    case.call_and_validate(base_url=service_url, additional_checks=[check_errors_are_problems])
