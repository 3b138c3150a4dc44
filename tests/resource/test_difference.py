"""The format of values in a difference."""

from reconciler.resource.difference import format_value


def test_a_value_is_formatted_as_json_and_truncated():
    assert format_value(None) == "not set"
    assert format_value("Red") == '"Red"'
    assert format_value({"a": [True, None]}) == '{"a":[true,null]}'
    assert len(format_value("x" * 1_000)) == 121
    assert format_value("x" * 1_000).endswith("x…")
