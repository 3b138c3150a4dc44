"""Find the line of an invalid field, and the commit that wrote its value.

A line in a file of several hundred lines is easier to find than a field, and the newest commit is
often not the one that broke the manifest.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
import yaml

from events.documents import DOCUMENT, YAML_LOADER, ParsedManifest, read_documents
from events.names import ResourceKey
from events.yaml_bounds import find_yaml_problem
from infra.providers.git.commit_tree import CommitTree
from infra.providers.git.problems import GitError
from infra.providers.git.reader_process import Document, Origin
from infra.providers.git.repository import Checkout
from reconciler.composites.git_source import describe_revision

_FIELD: Final = re.compile(
    r"(?:(?P<key>[^\s:/]+/[^\s:/]+/[^\s:/]+): )?(?P<path>(?:spec|metadata)(?:\.[\w-]+)*)"
)
"""The resource and the field at the start of a problem's message."""

_encoder = msgspec.json.Encoder(order="deterministic")


def find_origins(checkout: Checkout, problems: Sequence[Document], namespace: str) -> list[Origin]:
    """Return the line and the commit of each problem's field."""
    return [_find_origin(checkout, each, namespace) for each in problems]


def _find_origin(checkout: Checkout, problem: Document, namespace: str) -> Origin:
    field = _FIELD.match(problem.problem)
    key = "" if field is None else field["key"] or ""
    path = [] if field is None else field["path"].split(".")
    text = _read(checkout.tree, problem.file)
    line = _find_line(text or "", problem.line, key, path) or problem.line
    commit = _find_commit(checkout, problem.file, key, path, namespace)
    is_known = commit and commit != checkout.commit.id.decode()
    return Origin(line, describe_revision(checkout.describe(commit)) if is_known else "")


def _find_commit(
    checkout: Checkout, file: str, key: str, path: Sequence[str], namespace: str
) -> str:
    """Return the oldest commit since which the field has its value; empty if it is unknown."""
    origin, last_text, last_value, wanted = "", None, None, None
    for commit, tree in checkout.first_parents():
        text = _read(tree, file)
        if text is None:
            return origin
        value = last_value if text == last_text else _find_value(file, text, key, path, namespace)
        if wanted is None:
            wanted = value
        if value != wanted:
            return origin
        origin, last_text, last_value = commit, text, value
    return origin if checkout.has_root(origin) else ""


def _find_value(file: str, text: str, key: str, path: Sequence[str], namespace: str) -> bytes:
    """Return the value of a field, or the whole text if the document has no key."""
    if not key:
        return text.encode()
    for read in read_documents(file, text, namespace):
        if isinstance(read, ParsedManifest) and str(read.key) == key:
            value: Any = msgspec.to_builtins(read.manifest)
            for name in path:
                if not isinstance(value, dict):
                    break
                value = cast("dict[str, Any]", value).get(name)
            return _encoder.encode(value)
    return b""


def _read(tree: CommitTree, file: str) -> str | None:
    """Return the text of a file; None if the commit has no such text."""
    try:
        name, sha = next(tree.entries(file))
        text = tree.read(sha).decode()
    except (GitError, StopIteration, UnicodeDecodeError):
        return None
    return io.StringIO(text, newline=None).read() if name == file else None


def _find_line(text: str, first_line: int, key: str, path: Sequence[str]) -> int | None:
    """Return the line of a field, or of the deepest existing part of its path."""
    lines = text.splitlines(keepends=True)[first_line - 1 :]
    document = "".join(lines)
    following = DOCUMENT.search(document, 1)
    document = document if following is None else document[: following.start()]
    try:
        if find_yaml_problem(document, YAML_LOADER) is not None:
            return None  # composing it could exhaust the stack
        compose: Any = vars(yaml)["compose"]  # it is untyped
        root: Any = compose(document, Loader=YAML_LOADER)
    except (yaml.YAMLError, RecursionError):
        return None
    node = _find_manifest(root, key) if key else root
    line: int | None = None
    for name in path:
        for child_key, child in _pairs(node):
            if child_key.value == name:
                line, node = child_key.start_mark.line, child
                break
        else:
            break
    return None if line is None else first_line + line


def _find_manifest(root: Any, key: str) -> Any:
    """Return the node of a manifest in a document, which may be a list of manifests."""
    items = root.value if isinstance(root, yaml.SequenceNode) else None
    for name, child in _pairs(root):
        if name.value == "items" and isinstance(child, yaml.SequenceNode):
            items = child.value
    wanted = ResourceKey.parse(key)
    for item in items or ():
        fields = {name.value: child for name, child in _pairs(item)}
        metadata = {name.value: child.value for name, child in _pairs(fields.get("metadata"))}
        kind = getattr(fields.get("kind"), "value", None)
        if (kind, metadata.get("name")) == (wanted.kind, wanted.name):
            return item
    return root


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    return node.value if isinstance(node, yaml.MappingNode) else []
