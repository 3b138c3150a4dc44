"""Reading manifests: accepted forms and common mistakes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from events.names import ResourceKey
from reconciler.cli.errors import CommandError, format_error
from reconciler.cli.manifests import Documents, read_all
from tests.cli.runner import shape

CONFIG = (
    "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {name: default}\n"
    "spec: {provider: shapes, endpoint: 'http://127.0.0.1:8080'}\n"
)


def read(tmp_path: Path, **files: str) -> Documents:
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return read_all([str(tmp_path)], "team")


def test_configurations_come_first_and_the_namespace_has_a_default(tmp_path: Path) -> None:
    documents = read(tmp_path, a__yaml=f"{shape('one')}---\n{CONFIG}", b__yml=shape("two"))
    assert [read.key for read in documents.good] == [
        ResourceKey("system", "ProviderConfig", "default"),
        ResourceKey("team", "Shape", "one"),
        ResourceKey("team", "Shape", "two"),
    ]


def test_an_explicit_namespace_is_kept(tmp_path: Path) -> None:
    documents = read(tmp_path, a__yaml=shape("one", namespace="mine"))
    assert documents.good[0].key.namespace == "mine"


@pytest.mark.parametrize(
    "text",
    [
        '{"apiVersion": "shapes/v1", "kind": "Shape", "metadata": {"name": "one"}}',
        '[{"apiVersion": "shapes/v1", "kind": "Shape", "metadata": {"name": "one"}}]',
        '{"kind": "List", "items": '
        '[{"apiVersion": "shapes/v1", "kind": "Shape", "metadata": {"name": "one"}}]}',
    ],
)
def test_json_is_read_as_an_object_an_array_and_a_list_kind(tmp_path: Path, text: str) -> None:
    assert [read.key.name for read in read(tmp_path, a__json=text).good] == ["one"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [b\n", "did not find expected ',' or ']'"),
        ("- 1\n", "a manifest must be a mapping, not int"),
        ("words\n", "a manifest must be a mapping, not a string"),
        (shape("a.b"), "name 'a.b' is not allowed"),
        (
            shape("one") + "extra: 1\n",
            "extra: unknown field; use one of apiVersion, kind, metadata, spec",
        ),
        (
            shape("one", labels="{a: 1}"),
            "metadata.labels[...]: must be a string, not an integer; put it in quotes",
        ),
        (
            "apiVersion: v1\nkind: Shape\nmetadata: {name: one}\nspec: {policy: {mode: Odd}}\n",
            "'Odd' is not allowed",
        ),
        (
            "apiVersion: v1\nkind: Shape\nmetadata: {name: one}\n"
            "spec: {policy: {referencedFrom: [a.b]}}\n",
            "must match the regular expression",
        ),
    ],
)
def test_an_invalid_document_is_reported_with_its_file_and_number(
    tmp_path: Path, text: str, message: str
) -> None:
    documents = read(
        tmp_path, a__yaml=f"{shape('good')}---\n{text}".replace("---\na: [b", "---\na: [b")
    )
    assert [read.key.name for read in documents.good] == ["good"]
    assert len(documents.bad) == 1
    problem_message = documents.problems()[0]
    assert problem_message.startswith(f"{tmp_path / 'a.yaml'}, document 2: ")
    assert message in problem_message


def test_an_error_does_not_repeat_a_very_long_field(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, a__yaml=f"{{? {'k' * 200_000} : v}}").problems()
    assert "more characters" in problem
    assert len(problem) < 5_000
    assert len(format_error(CommandError("x" * 200_000))) < 5_000


def test_binary_standard_input_is_refused_like_a_binary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a: \xff\n")
    stdin = io.TextIOWrapper(io.BytesIO(b"a: \xff\n"), errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stdin)
    for path in ("-", str(tmp_path / "a.yaml")):
        with pytest.raises(CommandError, match=r"not UTF-8 text \(byte 4 is 0xff\); save it as"):
            read_all([path], "team")


def test_input_without_documents_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("# nothing\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(CommandError, match=r"^standard input, .*a\.yaml: no documents found; name"):
        read_all(["-", str(tmp_path / "a.yaml")], "team")


def test_a_number_that_is_too_long_is_reported_in_plain_words(tmp_path: Path) -> None:
    documents = read(tmp_path, a__yaml=f"a: {'1' * 5_000}\n")
    assert documents.problems()[0].endswith("invalid value in YAML: a number is too long")


def test_an_errors_line_number_is_counted_from_the_start_of_the_file(tmp_path: Path) -> None:
    documents = read(tmp_path, a__yaml=f"# one\n{shape('good')}---\nx: [y\n---\n{shape('also')}")
    assert len(documents.good) == 2
    assert "line 8, column 1" in documents.problems()[0]


def test_a_duplicate_resource_is_an_error(tmp_path: Path) -> None:
    documents = read(tmp_path, a__yaml=shape("one"), b__yaml=shape("one", "Blue"))
    assert documents.good[0].manifest.spec["color"] == "Red"
    assert documents.problems() == [
        f"{tmp_path / 'b.yaml'}, document 1: team/Shape/one is already declared in "
        f"{tmp_path / 'a.yaml'}, document 1; remove one of the two"
    ]


def test_empty_documents_are_skipped(tmp_path: Path) -> None:
    documents = read(tmp_path, a__yaml=f"---\n# nothing\n---\n{shape('one')}---\n")
    assert (len(documents.good), documents.bad) == (1, [])


def test_dates_are_read_as_text(tmp_path: Path) -> None:
    text = shape("one").replace("spec: {", "spec: {since: 2026-01-02, ")
    assert read(tmp_path, a__yaml=text).good[0].manifest.spec["since"] == "2026-01-02"


def test_a_folder_without_manifests_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"contains no files that end with \.yaml"):
        read(tmp_path)


def test_an_empty_path_does_not_mean_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty shell variable would declare or withdraw everything in that directory."""
    read(tmp_path, a__yaml=shape("one"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="--file '': name a file"):
        read_all([""], "team")


def test_code_in_yaml_is_not_run(tmp_path: Path) -> None:
    documents = read(tmp_path, a__yaml="a: !!python/object/apply:os.system [ls]\n")
    assert "could not determine a constructor" in documents.problems()[0]


def test_a_document_that_is_nested_too_deeply_does_not_block_the_others(tmp_path: Path) -> None:
    deep = '{"a":' * 5_000 + "1" + "}" * 5_000
    documents = read(tmp_path, a__json=deep, b__yaml=deep, c__yaml=shape("one"))
    assert len(documents.good) == 1
    assert [problem.split(": ")[-1] for problem in documents.problems()] == [
        "the document is nested too deeply",
        "the document is nested too deeply",
    ]


def test_an_endless_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reconciler.cli.manifests.MAX_MANIFEST_BYTES", 1 << 20)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_all(["/dev/zero"], "team")
    with Path("/dev/zero").open("rb") as infinite_file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(infinite_file))
        with pytest.raises(OSError, match=r"larger than 1 MiB.*standard input"):
            read_all(["-"], "team")
