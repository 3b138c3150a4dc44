"""How the values of a difference are shown."""

from reconciler.resource.difference import shown


def test_a_value_is_shown_as_json_and_cut_where_it_is_long():
    assert shown(None) == "not set"
    assert shown("Red") == '"Red"'
    assert shown({"a": [True, None]}) == '{"a":[true,null]}'
    assert len(shown("x" * 1_000)) == 121
    assert shown("x" * 1_000).endswith("x…")
