"""How the values of a difference are shown."""

from reconciler.resource.difference import format_value


def test_a_value_is_shown_as_json_and_cut_where_it_is_long():
    assert format_value(None) == "not set"
    assert format_value("Red") == '"Red"'
    assert format_value({"a": [True, None]}) == '{"a":[true,null]}'
    assert len(format_value("x" * 1_000)) == 121
    assert format_value("x" * 1_000).endswith("x…")
