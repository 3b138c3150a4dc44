"""Every private member of a library that the code uses is listed here, and must exist.

No changelog mentions them. A version without one would never call a method of ours, or never set an
attribute that we read.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = (
    *("events", "infra", "projections", "reconciler"),
    *("benchmarks", "docs", "examples", "tests"),
)

LISTED: Final[Mapping[str, frozenset[str]]] = {
    "nats.aio.client.Client": frozenset(
        {
            *("_attempt_reconnect", "_build_message", "_connect_command", "_connect_to_server"),
            *("_current_server", "_error_cb", "_flush_pending", "_flusher", "_flusher_task"),
            *("_parse_header_lines", "_pending", "_pending_data_size", "_ping_interval"),
            *("_ping_interval_task", "_process_connect_init", "_process_err", "_process_headers"),
            *("_process_msg", "_process_op_err", "_ps", "_public_nkey", "_read_loop"),
            *("_reading_task", "_remove_sub", "_resp_map", "_select_next_server", "_send_command"),
            *("_send_ping", "_server_info", "_server_pool", "_sid", "_signature_cb", "_status"),
            *("_subs", "_transport", "_user_jwt_cb"),
        }
    ),
    "nats.aio.msg.Msg": frozenset({"_client", "_sid"}),
    "nats.aio.subscription.Subscription": frozenset({"_id"}),
    "nats.aio.transport.TcpTransport": frozenset({"_io_reader", "_io_writer"}),
    # Without an underscore, but undocumented.
    "nats.protocol.parser": frozenset({"HMSG_RE", "MSG_RE"}),
    "nats.protocol.parser.Parser": frozenset({"buf", "needed", "state"}),
    "acme.client.ClientNetwork": frozenset({"_send_request"}),
    "eventsourcing.persistence.Subscription": frozenset(
        {"_has_been_stopped", "_last_notification_id", "_topics"}
    ),
    "eventsourcing.sqlite.SQLiteTrackingRecorder": frozenset({"_insert_tracking"}),
    "psycopg.AsyncConnection": frozenset({"_connect_gen"}),
    "urllib3.connection.HTTPConnection": frozenset({"_new_conn"}),
    "msgspec": frozenset({"_utils"}),
    # Python itself.
    "asyncio": frozenset({"_get_running_loop", "_set_running_loop"}),
    "asyncio.BaseEventLoop": frozenset({"_timer_handle_cancelled"}),
    "asyncio.Handle": frozenset({"_run"}),
    "asyncio.StreamReader": frozenset({"_buffer"}),
    "asyncio.Task": frozenset({"_log_destroy_pending"}),
    "asyncio.tasks": frozenset({"_unregister_task"}),
    "_signal": frozenset({"SIGINT", "SIG_DFL", "signal"}),
    # The tools that run the tests.
    "_pytest.mark": frozenset({"ParameterSet"}),
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol": frozenset({"_loop"}),
    "xdist.scheduler.loadscope.LoadScopeScheduling": frozenset({"_split_scope"}),
}
"""By the dotted name of the owning class or module."""

DOCUMENTED: Final = frozenset({"_exit", "_replace"})
"""Members of `os` and of named tuples."""

_NAME: Final = r"_[A-Za-z]\w*"
_DEFINED: Final = re.compile(rf"(?<![\w.\"'`])({_NAME})|\bself\.({_NAME})(?=\s*[:=])")
_USED: Final = re.compile(rf"(?<!\bself)(?<!\bcls)\.({_NAME})")
_NAMED: Final = re.compile(rf"[\"']({_NAME})[\"']|\b({_NAME})=")
"""Strings, such as keys of `vars`, and keyword arguments."""

_IMPORT: Final = re.compile(r"^ *(?:from|import) ([\w.]+)", re.MULTILINE)
_PLAIN: Final = r"(?!.*\b(?:Enum|Error|NamedTuple|Protocol|StrEnum|Struct)\b)"
_SUBCLASS: Final = re.compile(rf"^ *class \w+\({_PLAIN}", re.MULTILINE)


@cache
def members(dotted: str) -> frozenset[str]:
    """Return the names that a module has, or that a class and its bases have or use.

    Our own bases are left out.
    """
    owner = pkgutil.resolve_name(dotted)
    if not isinstance(owner, type):
        return frozenset(dir(owner))
    names: set[str] = set()
    for each in owner.__mro__:
        if each.__module__.partition(".")[0] not in FOLDERS:
            names.update(vars(each))
            if each is not ModuleType:  # its annotations are a descriptor
                names.update(vars(each).get("__annotations__", ()))
            for value in vars(each).values():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                if (code := getattr(function, "__code__", None)) is not None:
                    names.update(code.co_names, code.co_varnames)
    return frozenset(names)


def members_of_bases(text: str) -> Iterator[str]:
    """Return the members of library classes that the classes of a file override or use."""
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    classes: list[ast.ClassDef] = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                imported |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
            case ast.Import(names=names):
                imported |= {each.asname or each.name: each.name for each in names}
            case ast.ClassDef():
                classes.append(node)
            case _:
                pass
    for node in classes:
        for base in node.bases:
            first, dot, rest = ast.unparse(base).partition("[")[0].partition(".")
            dotted = f"{imported.get(first, 'tests')}{dot}{rest}"
            if not dotted.startswith(("tests", "benchmarks")):
                yield from set(_own_names(node)) & members(dotted)


def _own_names(node: ast.ClassDef) -> Iterator[str]:
    """Return the methods of a class, the attributes of ``self`` that it uses, and its strings."""
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Attribute(ast.Name("self" | "cls") | ast.Call(ast.Name("super")), name):
                yield name
            case ast.Constant(str(name)):
                yield name
            case _:
                pass


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    paths = (path for each in FOLDERS for path in sorted((ROOT / each).rglob("*.py")))
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    return {name: text for name, text in texts.items() if name != "tests/test_private_members.py"}


@pytest.mark.parametrize("owner", LISTED)
def test_the_installed_version_has_each_listed_member(owner: str) -> None:
    missing = LISTED[owner] - members(owner)
    assert not missing, (
        f"the installed version of {owner} has no {', '.join(sorted(missing))}; adapt the code "
        "that uses it, or require an older version in pyproject.toml"
    )


def test_each_used_private_member_is_listed(sources: dict[str, str]) -> None:
    own_names = {
        name for text in sources.values() for pair in _DEFINED.findall(text) for name in pair
    }
    allowed_members = DOCUMENTED.union(*LISTED.values())
    unlisted: list[str] = []
    for path, text in sources.items():
        modules = {each for each in _IMPORT.findall(text) if each.split(".")[0] not in FOLDERS}
        libraries = {each.partition(".")[0] for each in modules}
        owners = [each for each in LISTED if each.partition(".")[0] in libraries]
        owner_members = frozenset[str]().union(*map(members, owners))
        used_members = {
            name for name in _USED.findall(text) if name not in own_names or name in owner_members
        }
        used_members |= {name for pair in _NAMED.findall(text) for name in pair} & owner_members
        if _SUBCLASS.search(text):
            used_members |= {name for name in members_of_bases(text) if re.fullmatch(_NAME, name)}
        used_members |= {
            each for each in modules if re.search(rf"(?:^|\.){_NAME}", each)
        } - LISTED.keys()
        unlisted += [f"{path}: {name}" for name in sorted(used_members - allowed_members)]
    assert not unlisted, (
        "private members of libraries; use public ones, or list them in LISTED:\n"
        + "\n".join(unlisted)
    )


def test_each_listed_member_is_used(sources: dict[str, str]) -> None:
    words = {word for text in sources.values() for word in re.findall(r"\w+", text)}
    unused = frozenset[str]().union(*LISTED.values()) - words
    assert not unused, f"no longer used; remove them from LISTED: {', '.join(sorted(unused))}"
