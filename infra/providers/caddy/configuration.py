"""A route in Caddy's configuration: how a declaration is written and read back.

Caddy rejects unknown fields, so the metadata is in the ``group`` string field. Routes in one group
exclude each other, but a group with one route has no effect.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from infra.providers.caddy.order import (
    ANY_PATH,
    MAX_PAIRS,
    Position,
    Reach,
    Rule,
    build_rule,
    exact_path,
)
from infra.providers.caddy.spec import CERTIFICATE, normalize
from infra.providers.responses import UNDECODABLE
from reconciler.resource.owner_label import OWNER_LABEL, namespace_of

FAIL_SECONDS: Final = 1
"""Seconds during which an unreachable backend is not used, if there are others."""

MAX_RETRIES: Final = 10
RETRY_MILLISECONDS: Final = 50

MAX_URLS: Final = 100
"""Limit on the URLs in a route's outputs. Each server address can add ``order.MAX_PAIRS``."""

STREAM_HOURS: Final = 24
"""Hours that a WebSocket may outlive a change to the configuration."""

MISPLACED: Final = "order"
OTHER_SETTINGS: Final = "other settings"

_PATTERNS_PER_PATH: Final = 2  # the path itself, and everything below it
_PREFIX: Final = "reconciler "
_MILLISECONDS: Final = re.compile(r"([0-9]{1,12})ms")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_RESPONDERS: Final = frozenset({"error", "file_server", "reverse_proxy", "static_response"})
_PLACEHOLDERS: Final = frozenset("{}%")
"""Characters of values that Caddy evaluates for each request, or compares in another form."""

_MAX_NESTED: Final = 10
_LISTEN: Final = re.compile(r"(?:tcp/)?(\[[^\]]*\]|[^:/]*):([0-9]{1,5})")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}

CaddyRoute = dict[str, Any]
"""A route as it appears in the configuration."""

_Handler = dict[str, Any]


class Marks(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The metadata in a route: its uid, the key of its last writer, its labels and its files.

    ``tls``: the files as declared. Caddy stores only their content.
    """

    uid: str
    key: str
    labels: dict[str, str] = {}
    tls: Fields | None = None


class AutomaticHttps(msgspec.Struct, frozen=True):
    """Caddy's settings for automatic HTTPS on a server."""

    disable: bool = False
    disable_certificates: bool = False


class CaddyServer(msgspec.Struct, frozen=True):
    """A server in the configuration, with its routes."""

    listen: list[str] = []
    routes: list[CaddyRoute] | None = None
    tls_connection_policies: list[Any] | None = None
    automatic_https: AutomaticHttps | None = None

    @property
    def has_tls(self) -> bool:
        """Whether its own configuration enables TLS."""
        return bool(self.tls_connection_policies)

    @property
    def requests_certificates(self) -> bool:
        """Whether Caddy requests certificates for its hosts."""
        automatic = self.automatic_https or AutomaticHttps()
        return not (automatic.disable or automatic.disable_certificates)


class Pair(msgspec.Struct, frozen=True):
    """A certificate with its key, as stored in Caddy."""

    certificate: str = ""
    key: str = ""
    tags: list[str] | None = None
    id: Any = msgspec.field(name="@id", default=None)


class CertificateState(NamedTuple):
    """Whether Caddy's certificate is current, its fingerprint, and the problem with the files.

    ``key``: the private key that was read, which must never be shown.
    """

    is_current: bool = True
    fingerprint: str | None = None
    problem: str = ""
    key: str = ""


_encoder = msgspec.json.Encoder(order="deterministic")
_marks_decoder = msgspec.json.Decoder(Marks)


def name_problem(name: str) -> str | None:
    """Describe what is wrong with the name of a route; None if it is valid."""
    if _NAME.fullmatch(name) is not None:
        return None
    return "use 1 to 200 characters a-z A-Z 0-9 . _ - and start with a letter or digit"


def certificate_id(name: str) -> str:
    """Return the id of a route's certificate. No route can have this id."""
    return f"{name}:certificate"


def certificate_tag(uid: str) -> str:
    """Return the tag of a route's certificate, which is deleted together with the route."""
    return f"{_PREFIX}{uid}"


def is_own_certificate(pair: Pair) -> bool:
    """Return whether Reconciler stored a certificate, even if its route was deleted."""
    return any(tag.startswith(_PREFIX) for tag in pair.tags or ())


def new_uid(action: Action) -> str:
    """Return the uid of the route that an action creates. It is the same for each attempt."""
    return f"route-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"


def build_route(action: Action, uid: str) -> CaddyRoute:
    """Return an action's route as it is written to Caddy."""
    fields = normalize(action.fields)
    marks = Marks(uid, action.idempotency_key, dict(action.labels), fields["tls"])
    return _route(action.external_name, _PREFIX + _encoder.encode(marks).decode(), fields)


def _route(name: str, group: str, fields: Fields) -> CaddyRoute:
    match: dict[str, Any] = {}
    if fields["hosts"]:
        match["host"] = fields["hosts"]
    if ANY_PATH not in fields["paths"]:
        match["path"] = [each for path in fields["paths"] for each in (path, f"{path}/*")]
    balancing: dict[str, Any] = {"selection_policy": {"policy": fields["balancing"]}}
    count = len(fields["backends"])
    if fields["retrySeconds"]:
        balancing["try_duration"] = _duration(fields["retrySeconds"])
        balancing["try_interval"] = f"{RETRY_MILLISECONDS}ms"
    else:
        # Requests do not wait for a retry, because any change makes Caddy fail waiting ones (502).
        balancing["retries"] = max(1, min(count, MAX_RETRIES))
    checks: dict[str, Any] = {}
    if count > 1:
        checks["passive"] = {"fail_duration": f"{FAIL_SECONDS}s"}
    if (check := fields["healthCheck"]) is not None:
        checks["active"] = {
            "uri": check["path"],
            "interval": _duration(check["intervalSeconds"]),
            "timeout": _duration(check["timeoutSeconds"]),
        }
    handler = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": each} for each in fields["backends"]],
        "load_balancing": balancing,
        "health_checks": checks,
        "stream_close_delay": f"{STREAM_HOURS}h",
    }
    route: CaddyRoute = {"@id": name, "group": group, "handle": [handler], "terminal": True}
    return {**route, "match": [match]} if match else route


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


# --- reading


def name_of(route: Mapping[str, Any]) -> str | None:
    """Return the id of a route; None if a resource cannot have this name."""
    value: object = route.get("@id")
    name = str(value) if isinstance(value, str | int) else ""
    return name if name_problem(name) is None else None


def read_marks(route: Mapping[str, Any]) -> Marks | None:
    """Return the metadata in a route; None for another client's route."""
    group: object = route.get("group")
    if not isinstance(group, str) or not group.startswith(_PREFIX):
        return None
    try:
        return _marks_decoder.decode(group.removeprefix(_PREFIX))
    except UNDECODABLE:
        return None


def owner_namespace(marks: Marks | None) -> str:
    """Return the namespace of the resource that owns a route; empty if there is none."""
    return "" if marks is None else namespace_of(marks.labels.get(OWNER_LABEL, ""))


def reach(route: Mapping[str, Any], name: str) -> Reach:
    """Return which requests a route takes, according to its hosts and paths.

    A route takes unknown requests if it is too large, or if it only changes requests or responses.
    """
    match_sets = _match_sets(route)
    pairs = sum(
        max(1, len(each.get("host") or ())) * max(1, len(each.get("path") or ()))
        for each in match_sets
    )
    is_known = pairs <= MAX_PAIRS * _PATTERNS_PER_PATH and _is_terminal(route)
    rules = [rule for each in match_sets if (rule := _rule(each)) is not None] if is_known else []
    marks = read_marks(route)
    return Reach(name, rules, is_movable=marks is not None, namespace=owner_namespace(marks))


def _match_sets(route: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sets of matchers. A request must match all matchers of one set."""
    return cast("list[dict[str, Any]]", route.get("match") or [{}])


def _rule(match: Mapping[str, Any]) -> Rule | None:
    """Return the requests that a set of matchers selects.

    None if it selects none, or if that depends on more than the host and the path.
    """
    if not match.keys() <= {"host", "path"}:
        return None
    hosts = [each for each in match.get("host") or () if _PLACEHOLDERS.isdisjoint(str(each))]
    patterns = {str(each).lower() for each in match.get("path") or ()}
    paths, text_prefixes = set[str](), set[str]()
    for pattern in patterns:
        if not _PLACEHOLDERS.isdisjoint(pattern) or "*" in pattern[:-1] or "?" in pattern:
            continue  # it selects some of the requests below a path
        if not pattern.endswith("*"):
            is_prefix = f"{pattern}/*" in patterns
            paths.add(_prefix(pattern) if is_prefix else exact_path(pattern))
        elif pattern == "*" or pattern.endswith("/*"):
            paths.add(_prefix(pattern))
        else:
            text_prefixes.add(pattern[:-1])
    if ("host" in match and not hosts) or ("path" in match and not (paths or text_prefixes)):
        return None
    return build_rule(map(str, hosts), paths, text_prefixes)


def _prefix(pattern: str) -> str:
    return pattern.removesuffix("*").rstrip("/") or ANY_PATH


def _is_terminal(route: Mapping[str, Any]) -> bool:
    """Return whether a route ends the request. Other routes may only add a header, for example."""
    return bool(route.get("terminal")) or _responds(route)


def _responds(route: Mapping[str, Any], depth: int = 0) -> bool:
    handlers = cast("list[_Handler]", route.get("handle") or [])
    return any(
        each.get("handler") in _RESPONDERS
        or (
            depth < _MAX_NESTED
            and each.get("handler") == "subroute"
            and any(
                not inner.get("match") and _responds(inner, depth + 1)
                for inner in cast("list[dict[str, Any]]", each.get("routes") or [])
            )
        )
        for each in handlers
    )


def uid_of(name: str, marks: Marks | None) -> str:
    """Return the uid of a route. For other clients' routes, it is derived from the name."""
    if marks is not None:
        return marks.uid
    return f"route-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def as_object(
    name: str,
    route: Mapping[str, Any],
    server_name: str,
    server: CaddyServer,
    position: Position,
    certificate: CertificateState,
) -> ExternalObject:
    """Return a route as an object.

    ``differences`` names differences from the declaration that have no field.
    """
    marks = read_marks(route)
    fields, differences = _fields(route), list[str]()
    fields |= {"server": server_name, "tls": None if marks is None else marks.tls}
    fields = normalize(fields)
    if position.is_misplaced:
        differences.append(MISPLACED)
    if not certificate.is_current:
        differences.append(CERTIFICATE)
    if _route(name, str(route.get("group", "")), fields) != dict(route):
        differences.append(OTHER_SETTINGS)
    outputs: Fields = {"urls": _urls(fields, server), "listen": server.listen}
    if certificate.fingerprint is not None:
        outputs["certificate"] = certificate.fingerprint
    if certificate.problem:
        outputs["certificateProblem"] = certificate.problem
    if position.shadowed_by is not None:
        outputs["shadowedBy"] = position.shadowed_by
        outputs["shadowed"] = list(position.shadowed)
    return ExternalObject(
        name=name,
        fields={**fields, "differences": differences},
        uid=uid_of(name, marks),
        version=hashlib.blake2b(_encoder.encode(route), digest_size=12).hexdigest(),
        labels={} if marks is None else marks.labels,
        written_by=None if marks is None else marks.key,
        outputs=outputs,
    )


def _fields(route: Mapping[str, Any]) -> Fields:
    """Read everything that has a field. Anything else is a difference, and is overwritten."""
    handlers = cast("list[_Handler]", route.get("handle") or [])
    proxies = [each for each in handlers if each.get("handler") == "reverse_proxy"]
    match_sets = _match_sets(route)
    # A set without hosts or paths matches all of them, and so does the route.
    hosts = [list[object](each.get("host") or ()) for each in match_sets]
    paths = [list[object](each.get("path") or ()) for each in match_sets]
    handler: _Handler = proxies[0] if proxies else {}
    fields: Fields = {
        "hosts": [str(each) for part in hosts for each in part] if all(hosts) else [],
        "paths": [_prefix(str(each)) for part in paths for each in part] if all(paths) else [],
        "backends": [str(_at(each, "dial")) for each in handler.get("upstreams") or ()],
        "retrySeconds": _seconds(_at(handler, "load_balancing", "try_duration")) or 0.0,
        "healthCheck": None,
    }
    policy = _at(handler, "load_balancing", "selection_policy", "policy")
    if isinstance(policy, str):
        fields["balancing"] = policy
    check = _at(handler, "health_checks", "active")
    if check is not None:
        fields["healthCheck"] = {
            "path": str(_at(check, "uri") or ANY_PATH),
            "intervalSeconds": _seconds(_at(check, "interval")) or 0.0,
            "timeoutSeconds": _seconds(_at(check, "timeout")) or 0.0,
        }
    return fields


def _at(value: object, *names: str) -> object:
    for name in names:
        value = cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None
    return value


def _seconds(value: object) -> float | None:
    match = _MILLISECONDS.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else int(match[1]) / 1000


def _urls(fields: Fields, server: CaddyServer) -> list[str]:
    urls: dict[str, None] = {}
    for url in _generate_urls(fields, server):
        urls[url] = None
        if len(urls) == MAX_URLS:
            break
    return list(urls)


def _generate_urls(fields: Fields, server: CaddyServer) -> Iterator[str]:
    scheme = "https" if server.has_tls else "http"
    for address in server.listen:
        match = _LISTEN.fullmatch(address)
        if match is None:
            continue
        port = "" if match[2] == _DEFAULT_PORTS[scheme] else f":{match[2]}"
        hosts = [host for host in fields["hosts"] if not host.startswith("*")]
        if not fields["hosts"] and match[1] not in ("", "0.0.0.0", "[::]"):  # noqa: S104 - read only
            hosts = [match[1]]
        for host in hosts:
            name = f"[{host}]" if host.count(":") else host
            yield from (f"{scheme}://{name}{port}{path}" for path in fields["paths"])
