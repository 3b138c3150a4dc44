"""Only routes: their order, certificates, out-of-band edits, and refusals."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from events.allow import EVERY_PATH, Allow
from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields, InvalidManifestError
from events.names import ResourceKey
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.components.caddy import Caddy
from infra.providers.caddy import capacity
from infra.providers.caddy.admin import AdminApi, build_caddy_error
from infra.providers.caddy.capacity import measure
from infra.providers.caddy.certificate import compare_certificate, read_checked_pair
from infra.providers.caddy.configuration import (
    MAX_URLS,
    CaddyServer,
    CertificateState,
    Marks,
    Pair,
    as_object,
    certificate_tag,
    reach,
)
from infra.providers.caddy.order import (
    Reach,
    build_rule,
    find_index,
    find_position,
    positions,
    rearrange,
)
from infra.providers.caddy.route import ROUTE
from infra.providers.caddy.routes import APPS
from infra.providers.responses import Response
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Effect, MeasuredProvider, Provider, WatchingProvider
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.contract import action, listing, with_version_of
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, owner
from tests.caddy import SERVERS, CaddyAdmin, put, read_file, write_certificate
from tests.hostile_server import measure_event_loop
from tests.providers.permit import ClosedGate

pytestmark = [pytest.mark.caddy]

BACKENDS = ["127.0.0.1:9001"]
MANY = 1000


def connect_routes(server: Caddy, secrets: Secrets | None = None) -> Provider:
    assert ROUTE.connect is not None
    allow = Allow(certificates=(EVERY_PATH,))
    config = ProviderConfigSpec("caddy", server.endpoint, limits=Limits(), allow=allow)
    return ROUTE.connect(config, secrets or Secrets(), CallPermit())


@pytest.fixture
async def routes(caddy_server: Caddy) -> AsyncIterator[Provider]:
    provider = connect_routes(caddy_server)
    yield provider
    await provider.close()


@pytest.fixture
async def admin(caddy_server: Caddy) -> AsyncIterator[CaddyAdmin]:
    opened = CaddyAdmin(caddy_server)
    for server in ("http", "https"):
        await opened.send("PATCH", f"{SERVERS}/{server}/routes", [])
    yield opened
    await opened.close()


def route_fields(**fields: Any) -> Fields:
    return ROUTE.check_fields({"backends": BACKENDS, **fields})


def route_action(
    operation: Operation, name: str, namespace: str = "default", **fields: Any
) -> Action:
    """Build the action of a resource in a namespace."""
    labels = {OWNER_LABEL: owner("log", ResourceKey(namespace, "Route", name))}
    built = action(operation, name, route_fields(**fields))
    return msgspec.structs.replace(built, labels=labels)


async def create_route(
    routes: Provider, name: str, namespace: str = "default", **fields: Any
) -> ExternalObject:
    effect = await routes.create(route_action("Create", name, namespace, **fields))
    assert effect.object is not None
    return effect.object


async def read_route(routes: Provider, name: str) -> ExternalObject:
    existing = await routes.read(name)
    assert existing is not None
    return existing


async def update_route(
    routes: Provider, existing: ExternalObject, namespace: str = "default", **fields: Any
) -> ExternalObject:
    effect = await routes.update(
        with_version_of(route_action("Update", existing.name, namespace, **fields), existing)
    )
    assert effect.object is not None
    return effect.object


# --- declarations


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "spec.backends: required"),
        (
            {"backends": ["nobody"]},
            "'nobody' must have the form ADDRESS:PORT, such as 10.0.0.7:8080",
        ),
        ({"backends": ["a:0"]}, "'a:0' must have the form ADDRESS:PORT"),
        ({"backends": ["a:65536"]}, "must have the form ADDRESS:PORT"),
        ({"backends": ["{env.HOME}:80"]}, "must have the form ADDRESS:PORT"),
        ({"backends": [{"address": "a"}]}, "spec.backends[0].port: required"),
        (
            {"backends": [], "hosts": ["a.org:80"]},
            "'a.org:80' is not a host; use a value such as www.example.org",
        ),
        ({"backends": [], "hosts": ["a.*.org"]}, "is not a host"),
        ({"backends": [], "hosts": ["{http.x}"]}, "is not a host"),
        ({"backends": [], "paths": ["api"]}, "paths"),
        ({"backends": [], "paths": ["/a*"]}, "paths"),
        ({"backends": [], "paths": ["/{x}"]}, "paths"),
        ({"backends": [], "path": "/"}, "did you mean paths?"),
        ({"backends": [], "paths": ["/a/../b"]}, "'/a/../b' has a segment . or .., which Caddy"),
        ({"backends": [], "paths": ["/a", "/."]}, "declare the path without it"),
        ({"backends": [], "balancing": "rand"}, "balancing"),
        ({"backends": [], "tls": {"certificateFile": "/a", "keyFile": "/b"}}, "requires hosts"),
        ({"backends": [], "tls": {"certificateFile": "a", "keyFile": "/b"}}, "certificateFile"),
        ({"backends": [], "healthCheck": {"path": "/", "interval": 1}}, "unknown field"),
        ({"backends": [], "differences": ["order"]}, "spec.differences: unknown field"),
        (
            {"backends": [], "paths": [f"/{each:0>1000}" for each in range(33)]},
            "33033 bytes exceed the limit of 32768; declare several routes",
        ),
        (
            {
                "backends": [],
                "hosts": [f"{each}.org" for each in range(100)],
                "paths": [f"/{each}" for each in range(11)],
            },
            "100 hosts with 11 paths exceed the limit of 1000 pairs",
        ),
    ],
)
def test_an_invalid_route_is_refused_with_a_reason(fields: Fields, reason: str) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        ROUTE.check_fields(fields)
    assert reason in str(caught.value)


def test_two_spellings_of_a_route_are_equal() -> None:
    fields = route_fields(
        hosts=["B.org", "a.org."], paths=["/api/", "/api"], backends=["b:1", "a:080"]
    )
    other_fields = route_fields(
        hosts=["a.org", "b.org"],
        paths=["/api"],
        backends=[{"address": "A", "port": 80}, "b:1", "b:01"],
        server="http",
    )
    assert fields == other_fields == ROUTE.normalize(fields)
    assert route_fields(hosts=["2001:DB8:0::1", "2001:db8::1"])["hosts"] == ["2001:db8::1"]
    assert route_fields(backends=["b:1", "a:1"], balancing="first")["backends"] == ["b:1", "a:1"]


# --- which route matches


async def test_the_more_specific_route_comes_first_in_any_configuration(
    routes: Provider, admin: CaddyAdmin
) -> None:
    everything = {"@id": "everything", "handle": [{"handler": "static_response"}]}
    header = {"handle": [{"handler": "headers", "response": {"set": {"a": ["b"]}}}]}
    await admin.send("POST", f"{SERVERS}/http/routes", header)
    await admin.send("POST", f"{SERVERS}/http/routes", everything)
    await create_route(routes, "wild", hosts=["*.example.org"])
    await create_route(routes, "host", hosts=["a.example.org"])
    await create_route(routes, "deep", hosts=["a.example.org"], paths=["/a/b"])
    await create_route(routes, "path", hosts=["a.example.org"], paths=["/a"])
    await create_route(routes, "elsewhere", hosts=["b.example.net"])
    assert await admin.names() == [None, "deep", "path", "host", "wild", "elsewhere", "everything"]
    assert (await read_route(routes, "elsewhere")).fields["differences"] == []


async def test_a_route_that_is_moved_out_of_band_is_detected_and_moved_back(
    routes: Provider, admin: CaddyAdmin
) -> None:
    for name, paths in {"deep": ["/a"], "host": ["/"]}.items():
        await create_route(routes, name, hosts=["a.example.org"], paths=paths)
    deep, host = await admin.get(f"{SERVERS}/http/routes")
    await admin.send("PATCH", f"{SERVERS}/http/routes", [host, deep])
    existing = await read_route(routes, "deep")
    assert existing.fields["differences"] == ["order"]
    assert existing in await listing(routes, Scope())
    repaired = await update_route(routes, existing, hosts=["a.example.org"], paths=["/a"])
    assert (repaired.fields["differences"], repaired.uid) == ([], existing.uid)
    assert await admin.names() == ["deep", "host"]


async def test_the_second_route_with_a_host_and_path_is_not_ready_and_reports_the_reason(
    routes: Provider, admin: CaddyAdmin
) -> None:
    first = await create_route(routes, "first", hosts=["a.example.org"], paths=["/a", "/b"])
    second = await create_route(routes, "second", hosts=["a.example.org"], paths=["/b", "/c"])
    assert ROUTE.ready(first.fields, first).is_ready
    is_ready, reason, message = ROUTE.ready(second.fields, second)
    assert (is_ready, reason) == (False, "Shadowed")
    assert message == "route 'first' receives the requests for a.example.org/b"
    await routes.delete(with_version_of(action("Delete", "first", {}), first))
    assert ROUTE.ready(second.fields, await read_route(routes, "second")).is_ready
    without_backends = await create_route(
        routes, "no-backends", hosts=["c.example.org"], backends=[]
    )
    assert ROUTE.ready(without_backends.fields, without_backends).reason == "NoBackends"


async def test_a_route_of_another_namespace_or_client_is_not_named(
    routes: Provider, admin: CaddyAdmin
) -> None:
    await create_route(routes, "secret-project", "bob", hosts=["a.example.org"])
    shadowed = await create_route(routes, "second", "alice", hosts=["a.example.org"])
    assert ROUTE.ready(shadowed.fields, shadowed).message == (
        "a route in another namespace receives the requests for a.example.org/"
    )
    assert shadowed.outputs["shadowedBy"] == "a route in another namespace"
    own = await create_route(routes, "third", "bob", hosts=["a.example.org"])
    assert own.outputs["shadowedBy"] == "secret-project"
    theirs = {"@id": "theirs", "handle": [{"handler": "static_response"}]}
    await admin.send("PUT", f"{SERVERS}/http/routes/0", theirs)
    shadowed = await read_route(routes, "second")
    assert shadowed.outputs["shadowedBy"] == "a route of another client"


async def test_paths_that_differ_in_case_are_the_same_for_caddy(
    routes: Provider, admin: CaddyAdmin
) -> None:
    await create_route(routes, "first", hosts=["a.example.org"], paths=["/API"])
    second = await create_route(routes, "second", hosts=["a.example.org"], paths=["/api/"])
    assert (second.outputs["shadowedBy"], second.outputs["shadowed"]) == (
        "first",
        ["a.example.org/api"],
    )
    third = await create_route(routes, "third", hosts=["a.example.org"], paths=["/Api/x"])
    assert ROUTE.ready(third.fields, third).is_ready


async def test_a_wildcard_beside_a_named_host_does_not_take_the_named_host_of_another_route(
    routes: Provider, admin: CaddyAdmin
) -> None:
    catch_all = await create_route(routes, "catch-all", hosts=["www.shop.org", "*.shop.org"])
    billing = await create_route(routes, "billing", hosts=["billing.shop.org"])
    assert await admin.names() == ["billing", "catch-all"]
    assert ROUTE.ready(billing.fields, billing).is_ready
    assert ROUTE.ready(catch_all.fields, await read_route(routes, "catch-all")).is_ready


async def test_a_route_that_becomes_less_specific_moves_behind_the_others(
    routes: Provider, admin: CaddyAdmin
) -> None:
    """It must not take requests until the other routes are repaired."""
    catch_all = await create_route(routes, "catch-all", hosts=["www.shop.org"])
    await create_route(routes, "billing", hosts=["billing.shop.org"])
    assert await admin.names() == ["catch-all", "billing"]
    changed = await update_route(routes, catch_all, hosts=["www.shop.org", "*.shop.org"])
    assert await admin.names() == ["billing", "catch-all"]
    assert (changed.uid, changed.fields["differences"]) == (catch_all.uid, [])


async def test_two_routes_that_are_each_more_specific_keep_their_order_and_one_is_shadowed(
    routes: Provider, admin: CaddyAdmin
) -> None:
    first = await create_route(routes, "first", hosts=["a.x.org", "*.y.org"])
    second = await create_route(routes, "second", hosts=["b.y.org", "*.x.org", "c.z.org"])
    assert second.fields["differences"] == [], "no order is correct, so none is written"
    again = await update_route(routes, second, hosts=second.fields["hosts"])
    assert (again.fields, again.outputs) == (second.fields, second.outputs)
    assert await admin.names() == ["first", "second"]
    assert ROUTE.ready(first.fields, await read_route(routes, "first")).is_ready
    is_ready, reason, message = ROUTE.ready(second.fields, second)
    assert (is_ready, reason) == (False, "Shadowed")
    assert message == "route 'first' receives the requests for b.y.org/"


async def test_a_move_takes_along_the_routes_that_must_stay_in_front(
    routes: Provider, admin: CaddyAdmin
) -> None:
    """``b`` must precede ``c``, and ``a`` must precede ``b``, so neither can move alone."""
    hosts = {"a": ["a.x.org"], "b": ["*.x.org", "b.y.org"], "c": ["*.y.org", "c.z.org"]}
    for name, each in {**hosts, "d": ["*.z.org"]}.items():
        await create_route(routes, name, hosts=each)
    a, b, c, d = await admin.get(f"{SERVERS}/http/routes")
    await admin.send("PATCH", f"{SERVERS}/http/routes", [c, d, a, b])
    misplaced = await read_route(routes, "b")
    assert misplaced.fields["differences"] == ["order"]
    repaired = await update_route(routes, misplaced, hosts=hosts["b"])
    assert repaired.fields["differences"] == []
    assert await admin.names() == ["a", "b", "c", "d"]


FOREIGN_MATCHES: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([{"host": ["*.*.org"]}], ["a.shop.org/", "a.shop.org/payments"]),
    ([{"host": ["*.SHOP.org"], "path": ["/pay*"]}], ["a.shop.org/payments"]),
    ([{"path": ["/*"]}], ["a.shop.org/", "a.shop.org/payments"]),
    ([{"path": ["*"]}], ["a.shop.org/", "a.shop.org/payments"]),
    ([{"host": ["b.org"]}, {"path": ["/Payments", "/payments/*"]}], ["a.shop.org/payments"]),
    ([{"host": ["b.org"]}, {"path": ["/api"]}], []),
    ([{"host": ["a.shop.org"], "path": ["/"]}], []),
    ([{"host": ["a.shop.org"], "path": ["/payments/1"]}], []),
    ([{"host": []}], []),
    ([{"host": ["{env.HOST}"]}], []),
    ([{"host": ["a.shop.org"], "method": ["GET"]}], []),
    ([{"path": ["*.php", "/a/*/b"]}], []),
    ([{"host": ["*.org"]}], []),
    ([{"host": ["*"]}], []),
]


async def test_a_foreign_route_shadows_exactly_the_requests_that_it_takes(
    admin: CaddyAdmin, caddy_server: Caddy
) -> None:
    """Compared with the responses of Caddy, which receives a request below each path."""
    own = {"a.shop.org/": build_rule(["a.shop.org"]), "a.shop.org/payments": None}
    own["a.shop.org/payments"] = build_rule(["a.shop.org"], ["/payments"])
    url, header = f"http://127.0.0.1:{caddy_server.http_port}", {"Host": "a.shop.org"}
    async with httpx.AsyncClient(base_url=url, headers=header) as client:
        for match, expected in FOREIGN_MATCHES:
            theirs = {
                "@id": "theirs",
                "match": match,
                "handle": [{"handler": "static_response", "body": "theirs"}],
            }
            await admin.send("PATCH", f"{SERVERS}/http/routes", [theirs])
            for request, rule in own.items():
                assert rule is not None
                [_, ours] = positions([reach(theirs, "theirs"), Reach("ours", [rule])])
                is_shadowed = request in expected
                assert list(ours.shadowed) == [request] * is_shadowed, match
                path = request.removeprefix("a.shop.org").rstrip("/")
                if "{" not in repr(match[0].get("host")) and "method" not in match[0]:
                    response = await client.get(f"{path}/unnamed")
                    assert (response.text == "theirs") == is_shadowed, match


hosts_and_paths = st.tuples(
    st.lists(
        st.sampled_from(["a.x", "b.x", "*.x", "*.a.x", "a.y", "*.y"]), unique=True, max_size=3
    ),
    st.lists(st.sampled_from(["/", "/p", "/p/q", "/r"]), unique=True, max_size=2),
)


def is_within(path: str, prefix: str) -> bool:
    return prefix in ("/", path) or path.startswith(f"{prefix}/")


def rank_of(rule: tuple[list[str], list[str]], host: str, path: str) -> tuple[int, int] | None:
    """Return how specific a rule is for a request, by a search of all its hosts and paths."""
    wildcard = f"*.{host.partition('.')[2]}"
    ranks = [
        ([host, wildcard].index(own_host) * -1 + 2 if own_host else 0, len(own_path.rstrip("/")))
        for own_host in rule[0] or [""]
        for own_path in rule[1] or ["/"]
        if own_host in ("", host, wildcard) and is_within(path, own_path)
    ]
    return max(ranks, default=None)


REQUESTS = [
    (host, path)
    for host in ("a.x", "b.x", "u.x", "u.a.x", "a.y", "u.y", "u.u.u")
    for path in ("/u", "/p/u", "/p/q/u", "/r/u")
]


@given(st.lists(hosts_and_paths, max_size=7), st.randoms())
def test_routes_in_any_order_are_rearranged_or_reported(
    rules: list[tuple[list[str], list[str]]], random: Random
) -> None:
    """Each request reaches the most specific route, or that route is reported as shadowed."""
    order: list[Reach] = []
    for number, (hosts, paths) in enumerate(rules):
        route = Reach(str(number), [build_rule(hosts, paths)], namespace="default")
        order.insert(find_index(route, order), route)
    random.shuffle(order)
    for _ in range(len(order) ** 2 + 1):  # a misplaced route is moved when it is listed
        wrong = [at for at, each in enumerate(positions(order)) if each.is_misplaced]
        if not wrong:
            break
        moved = [order[each] for each in rearrange(order, random.choice(wrong))]
        assert moved != order
        order = moved
    else:
        pytest.fail("the routes never reach a valid order")
    standings = {each.name: at for each, at in zip(order, positions(order), strict=True)}
    assert list(standings.values()) == [find_position(order, at) for at in range(len(order))]
    for host, path in REQUESTS:
        ranks = {each.name: rank_of(rules[int(each.name)], host, path) for each in order}
        matching = {name: rank for name, rank in ranks.items() if rank is not None}
        if not matching:
            continue
        winner = next(iter(matching))
        for name, rank in matching.items():
            if rank >= matching[winner] and name != winner:
                assert standings[name].shadowed_by is not None, (name, host, path)
    for name, standing in standings.items():
        if standing.shadowed_by is not None:
            assert any(
                rank_of(rules[int(name)], host, path) is not None
                and rank_of(rules[int(standing.shadowed_by)], host, path) is not None
                for host, path in REQUESTS
            )


def test_routes_created_one_by_one_in_any_order_are_in_the_same_order() -> None:
    rules = {"deep": (["a.x"], ["/p"]), "host": (["a.x"], ["/"]), "wild": (["*.x", "b.y"], ["/"])}
    for names in itertools.permutations([*rules, "any"]):
        order: list[Reach] = []
        for name in names:
            route = Reach(name, [build_rule(*rules.get(name, ((), ())))])
            order.insert(find_index(route, order), route)
        assert [each.name for each in order] == [*rules, "any"]


def test_a_route_with_many_hosts_and_paths_takes_little_time_and_memory() -> None:
    """A hostile Caddy can return this configuration in 4 MB; it has 10 billion pairs."""
    hosts = [f"{each:020}" for each in range(100_000)]
    match = [{"host": hosts, "path": [f"/{each}" for each in hosts]}]
    route = {"@id": "big", "match": match, "terminal": True}
    server = CaddyServer(listen=[":80"], routes=[route])
    started_at = time.process_time()
    [standing] = positions([reach(route, "big")])
    observed_route = as_object("big", route, "http", server, standing, CertificateState())
    assert time.process_time() - started_at < 5
    assert len(observed_route.outputs["urls"]) == MAX_URLS


@pytest.mark.parametrize(
    "hosts",
    [
        [["same.org"]],
        [["a{}.x.org", "*.y.org"], ["b{}.y.org", "*.x.org"]],
        [["a{}.x.org", "*.z{}.org", "b.z{}1.org"]],
        [["*.x.org"], ["a{}.x.org"], []],
    ],
    ids=["tied", "contradictory", "unrelated", "covered"],
)
def test_many_routes_in_conflict_take_little_time(hosts: list[list[str]]) -> None:
    routes = [
        Reach(str(at), [build_rule(each.format(at) for each in hosts[at % len(hosts)])])
        for at in range(MANY)
    ]
    started_at = time.process_time()
    for _ in positions(routes):
        pass
    assert time.process_time() - started_at < 5


@pytest.mark.parametrize("tls", [{"certificateFile": "{}", "keyFile": "{}"}, {}, {"keyFile": 1}])
def test_files_that_caddy_names_are_not_read_unless_routes_may_use_them(
    tls: Fields, tmp_path: Path
) -> None:
    """A route in Caddy may come from another client, and could name any file."""
    file = tmp_path / "passwords"
    file.write_text("planted in a file of the host")
    tls = {name: each.format(file) if each == "{}" else each for name, each in tls.items()}
    marks = Marks("u1", "key", {}, tls)
    pair = Pair(file.read_text(), file.read_text(), [certificate_tag("u1")])
    for allow in (Allow(), Allow(certificates=(f"{tmp_path}/*.pem",))):
        certificate_state = compare_certificate(marks, pair, allow)
        assert (certificate_state.key, certificate_state.is_current) == ("", True)
        assert "spec.allow.certificates" in certificate_state.problem


def test_a_pipe_is_not_read_as_a_certificate(tmp_path: Path) -> None:
    """Opening it would block a thread of the process until another process writes to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tls = {"certificateFile": str(pipe), "keyFile": str(pipe)}
    with pytest.raises(NotDoneError, match="is not a PEM file"):
        read_checked_pair(tls, Allow())


NAMES: list[tuple[str, str | None, list[x509.GeneralName], str | None]] = [
    ("common name", "tls.bob.org", [], "tls.bob.org"),
    ("DNS", None, [x509.DNSName("a.alice.org"), x509.DNSName("TLS.bob.org")], "tls.bob.org"),
    ("wildcard", None, [x509.DNSName("*.bob.org")], "*.bob.org"),
    ("wider wildcard", None, [x509.DNSName("*.*.org")], "*.*.org"),
    ("IP", None, [x509.IPAddress(IPv4Address("10.0.0.7"))], "10.0.0.7"),
    ("IPv6", None, [x509.IPAddress(IPv6Address("::ffff:10.0.0.7"))], "10.0.0.7"),
    ("email", None, [x509.RFC822Name("tls.bob.org")], "tls.bob.org"),
    ("URI", None, [x509.UniformResourceIdentifier("tls.bob.org")], "tls.bob.org"),
    ("own", "a.alice.org", [x509.DNSName("*.alice.org"), x509.DNSName("x.y.alice.org")], None),
    ("no host", "Alice & Co", [x509.RFC822Name("web@bob.org"), x509.DNSName("alice.org")], None),
]


@pytest.mark.parametrize(
    ("common_name", "names", "forbidden"),
    [each[1:] for each in NAMES],
    ids=[each[0] for each in NAMES],
)
def test_a_certificate_is_used_only_if_each_name_is_permitted(
    common_name: str | None, names: list[x509.GeneralName], forbidden: str | None, tmp_path: Path
) -> None:
    """Caddy would use it for each of its names, whichever route it was loaded for."""
    tls = put_certificate(tmp_path, common_name, names)
    certificate, key = (read_file(tls[each]).decode() for each in ("certificateFile", "keyFile"))
    marks, pair = Marks("u1", "key", {}, tls), Pair(certificate, key, [certificate_tag("u1")])
    allow = Allow(certificates=(EVERY_PATH,), hosts=("alice.org", "*.alice.org"))
    state = compare_certificate(marks, pair, allow)
    if forbidden is None:
        assert (read_checked_pair(tls, allow).certificate, state.problem) == (certificate, "")
    else:
        problem = f"is also valid for {forbidden!r}, so Caddy would use it for that host"
        with pytest.raises(NotDoneError, match=re.escape(problem)):
            read_checked_pair(tls, allow)
        assert problem in state.problem
    assert read_checked_pair(tls, Allow()).certificate == certificate, "by default, all are used"


@pytest.mark.parametrize(
    "hidden_block",
    [
        "-----BEGIN X509 CERTIFICATE-----\n{}-----END X509 CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----x\n",
        "-----BEGIN CERTIFICATE-----\nA: b\n\n{}-----END CERTIFICATE-----\n",
        " -----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nAA=A{}-----END CERTIFICATE-----\n",
    ],
)
def test_a_certificate_is_not_used_if_caddy_may_read_another_one_from_the_file(
    hidden_block: str, tmp_path: Path
) -> None:
    own = put_certificate(tmp_path, None, [x509.DNSName("alice.org")])["certificateFile"]
    body = "".join(read_file(own).decode().splitlines(keepends=True)[1:-1])
    tls = put_certificate(tmp_path, None, [x509.DNSName("tls.bob.org")])
    put(tls["certificateFile"], hidden_block.format(body).encode() + read_file(own))
    with pytest.raises(NotDoneError, match="must begin with a certificate whose names can be read"):
        read_checked_pair(tls, Allow(hosts=("alice.org",)))


def put_certificate(
    folder: Path, common_name: str | None, names: list[x509.GeneralName]
) -> dict[str, str]:
    """Write a certificate with names of any type, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)] if common_name else []
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        x509.Name([]), x509.Name(attributes), key.public_key(), 7, now, now + timedelta(days=1)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    paths = {"certificateFile": folder / "tls.crt", "keyFile": folder / "tls.key"}
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    paths["certificateFile"].write_bytes(certificate.public_bytes(pem))
    paths["keyFile"].write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return {name: str(path) for name, path in paths.items()}


# --- other clients


async def test_every_out_of_band_edit_is_detected_and_reverted(
    routes: Provider, admin: CaddyAdmin
) -> None:
    fields: Fields = {"hosts": ["a.example.org"], "paths": ["/a"]}
    own_route = await create_route(routes, "ours", **fields)
    clean = await admin.find("ours")
    assert clean is not None
    proxy = clean["handle"][0]
    edits: list[tuple[dict[str, Any], str]] = [
        ({"handle": [{**proxy, "upstreams": [{"dial": "127.0.0.1:1"}]}]}, "backends"),
        ({"match": [{"host": ["b.example.org"], "path": ["/a", "/a/*"]}]}, "hosts"),
        ({"match": [{**clean["match"][0], "method": ["GET"]}]}, "differences"),
        ({"match": [{**clean["match"][0], "path": ["/a*"]}]}, "differences"),
        ({"terminal": False}, "differences"),
        ({"handle": [{"handler": "headers"}, proxy]}, "differences"),
        ({"handle": [{**proxy, "flush_interval": -1}]}, "differences"),
        ({"handle": [{"handler": "static_response"}]}, "backends"),
    ]
    for edit, field in edits:
        await admin.send("PATCH", "/id/ours", {**clean, **edit})
        existing = await read_route(routes, "ours")
        assert existing in await listing(routes, Scope())
        assert existing.uid == own_route.uid
        assert existing.fields[field] != own_route.fields[field], edit
        assert existing.version != own_route.version
        repaired = await update_route(routes, existing, **fields)
        assert repaired.fields == own_route.fields


async def test_foreign_routes_are_listed_as_foreign_and_other_entries_are_not_listed(
    routes: Provider, admin: CaddyAdmin
) -> None:
    foreign_route: dict[str, Any] = {
        "@id": "theirs",
        "group": "g",
        "match": [{"host": ["B.example.org"], "path": ["/x*"]}],
        "handle": [{"handler": "reverse_proxy", "upstreams": [{"dial": "{env.BACKEND}:80"}]}],
    }
    inner: dict[str, Any] = {"@id": "nested", "handle": []}
    nested = {"handler": "subroute", "routes": [inner]}
    other_entries: list[dict[str, Any]] = [{"handle": [nested]}, {"@id": "a name", "handle": []}]
    await admin.send("PATCH", f"{SERVERS}/http/routes", [foreign_route, *other_entries, {"@id": 7}])
    objects = {each.name: each for each in await listing(routes, Scope())}
    assert objects.keys() == {"theirs", "7"}
    assert (objects["theirs"].labels, objects["theirs"].written_by) == ({}, None)
    assert objects["theirs"].fields["backends"] == ["{env.BACKEND}:80"]
    assert await routes.read("nested") is None
    with pytest.raises(ConflictError) as caught:
        await create_route(routes, "theirs")
    assert caught.value.obstacle == objects["theirs"]
    with pytest.raises(NotDoneError, match="the id 'nested' belongs, or recently belonged"):
        await create_route(routes, "nested")
    routes_before = await admin.get(f"{SERVERS}/http/routes")
    own_route = await create_route(routes, "ours")
    await routes.delete(with_version_of(action("Delete", "ours", {}), own_route))
    assert await admin.get(f"{SERVERS}/http/routes") == routes_before
    adopted = await update_route(routes, objects["theirs"])
    assert adopted.uid == objects["theirs"].uid
    assert adopted.fields["differences"] == []


class RequestCounter(ClosedGate):
    """Call gate that counts requests, and blocks one of them until the test ends."""

    def __init__(self, *, blocked_request: int = 0, reached: asyncio.Event | None = None) -> None:
        self.requests = 0
        self._blocked_request, self._reached = blocked_request, reached

    async def wait(self, *, has_priority: bool = False) -> None:
        self.requests += 1
        if self._reached is not None and self.requests == self._blocked_request:
            self._reached.set()
            await asyncio.Event().wait()


class EditBefore(ClosedGate):
    """Call gate that changes a route out of band before one of the requests."""

    def __init__(self, admin: CaddyAdmin, content: dict[str, Any], *, request: int) -> None:
        self._admin, self._content, self._remaining = admin, content, request

    async def wait(self, *, has_priority: bool = False) -> None:
        self._remaining -= 1
        if self._remaining == 0:
            await self._admin.send("PATCH", f"/id/{self._content['@id']}", self._content)


async def test_an_edit_between_read_and_write_is_not_overwritten(
    routes: Provider, admin: CaddyAdmin
) -> None:
    own_route = await create_route(routes, "ours", hosts=["a.example.org"])
    edited = await admin.find("ours")
    assert edited is not None
    edited["terminal"] = False
    token = CALL_GATE.set(EditBefore(admin, edited, request=4))
    with pytest.raises(NotDoneError, match="was changed during the write"):
        await update_route(routes, own_route, hosts=["b.example.org"])
    CALL_GATE.reset(token)
    assert await admin.find("ours") == edited
    with pytest.raises(ConflictError):  # as a retry of the same action detects
        await update_route(routes, own_route, hosts=["b.example.org"])


async def test_a_change_elsewhere_moves_the_route_without_a_conflict(
    routes: Provider, admin: CaddyAdmin
) -> None:
    own_route = await create_route(routes, "ours", hosts=["a.example.org"])
    await admin.send("PUT", f"{SERVERS}/http/routes/0", {"@id": "before", "handle": []})
    changed = await update_route(routes, own_route, hosts=["b.example.org"])
    assert changed.fields["hosts"] == ["b.example.org"]
    assert await admin.find("before") == {"@id": "before", "handle": []}


async def test_each_change_moves_the_change_mark(routes: Provider, admin: CaddyAdmin) -> None:
    assert isinstance(routes, WatchingProvider)
    own_route = await create_route(routes, "ours")
    mark = await routes.changes(None)
    assert await routes.changes(mark) == mark
    await admin.send("DELETE", "/id/ours")
    assert await routes.changes(mark) != mark
    assert await routes.read(own_route.name) is None


# --- servers, refusals


async def test_a_route_waits_for_an_unsuitable_server_and_names_it(
    routes: Provider, admin: CaddyAdmin
) -> None:
    with pytest.raises(NotDoneError, match=r"no server 'other' \(its servers: http, https\)"):
        await create_route(routes, "ours", server="other")
    listen = {"listen": ["127.0.0.1:0"]}
    await admin.send("PUT", f"{SERVERS}/other", {**listen, "automatic_https": {"skip": ["a"]}})
    try:
        with pytest.raises(NotDoneError, match="Caddy itself would obtain certificates"):
            await create_route(routes, "ours", server="other", hosts=["a.example.org"])
    finally:
        await admin.send("DELETE", f"{SERVERS}/other")
    assert await listing(routes, Scope()) == []


async def test_a_route_is_kept_until_the_server_of_its_replacement_is_usable(
    routes: Provider, admin: CaddyAdmin
) -> None:
    del admin  # it deletes the routes of earlier tests
    route = await create_route(routes, "ours")
    deletion = with_version_of(action("Delete", "ours", route_fields(server="htpp")), route)
    deletion = msgspec.structs.replace(deletion, purpose="Replace")
    with pytest.raises(NotDoneError, match=r"no server 'htpp' \(its servers: http, https\)"):
        await routes.delete(deletion)
    assert await read_route(routes, "ours") == route
    await routes.delete(msgspec.structs.replace(deletion, fields=route_fields(server="https")))
    assert await routes.read("ours") is None


async def test_a_refusal_by_caddy_is_permanent_and_changes_nothing(
    routes: Provider, admin: CaddyAdmin
) -> None:
    own_route = await create_route(routes, "ours", hosts=["a.example.org"])
    bad = action("Update", "ours", {**own_route.fields, "balancing": "nonesuch"})
    with pytest.raises(RefusedError, match=r"selection_policies\.nonesuch") as caught:
        await routes.update(with_version_of(bad, own_route))
    assert caught.value.status == 400, "not a sign of a failing Caddy"
    with pytest.raises(RefusedError):
        await routes.create(msgspec.structs.replace(bad, external_name="new", operation="Create"))
    assert await listing(routes, Scope()) == [own_route]
    assert (await admin.find("new")) is None


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("loading new config: loading http app module: provision http: no", RefusedError),
        ("loading new config: http app module: start: listening on :80: in use", NotDoneError),
        (
            "loading new config: loading tls app module: loading certificates: no such file",
            NotDoneError,
        ),
        ("[/config/apps/http/servers/http/routes/9] array index out of bounds: 9", NotDoneError),
        ("invalid traversal path at: config/apps/http", NotDoneError),
        ("something else", UnknownResultError),
        ("", UnknownResultError),
    ],
)
def test_a_500_is_classified_by_its_message(message: str, error: type[ProviderError]) -> None:
    content = msgspec.json.encode({"error": message}) if message else b"<html>"
    assert isinstance(build_caddy_error(Response("PATCH", "/config", 500, {}, content)), error)


async def test_a_404_from_a_server_that_is_not_caddy_does_not_prove_absence(
    caddy_server: Caddy, admin: CaddyAdmin
) -> None:
    config = ProviderConfigSpec(provider="caddy", endpoint=f"{caddy_server.endpoint}/wrong")
    api = AdminApi(config, Secrets(), CallPermit())
    with pytest.raises(NotDoneError, match=r"check spec\.endpoint"):
        await api.find("absent")
    await api.close()


async def test_calls_wait_for_a_caddy_without_a_configuration(
    routes: Provider, admin: CaddyAdmin
) -> None:
    config_before = await admin.get("/config/apps")
    await admin.send("DELETE", "/config/apps")
    try:
        assert await listing(routes, Scope()) == []
        for call in (routes.read("ours"), create_route(routes, "ours")):
            with pytest.raises(
                NotDoneError, match=r"load a configuration with apps\.http\.servers"
            ):
                await call
    finally:
        await admin.send("PUT", "/config/apps", config_before)


async def test_readings_are_caddys_backend_counts(routes: Provider, admin: CaddyAdmin) -> None:
    assert isinstance(routes, MeasuredProvider)
    await create_route(routes, "ours", backends=["127.0.0.1:9001", "127.0.0.1:9002"])
    readings = await routes.readings("ours")
    no_requests = {"requests": 0, "fails": 0}
    assert readings == {"backends": {"127.0.0.1:9001": no_requests, "127.0.0.1:9002": no_requests}}
    assert await routes.readings("absent") is None


# --- certificates


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def test_a_certificate_is_created_and_deleted_with_its_route(
    routes: Provider, admin: CaddyAdmin, authority: trustme.CA, tmp_path: Path
) -> None:
    tls = write_certificate(tmp_path, authority.issue_cert("a.example.org"))
    own_route = await create_route(routes, "ours", hosts=["a.example.org"], tls=tls)
    assert own_route.fields["server"] == "https"
    assert own_route.outputs["urls"][0].startswith("https://a.example.org:")
    entry = await admin.find("ours:certificate")
    assert entry is not None
    write_certificate(tmp_path, authority.issue_cert("a.example.org"))
    renewed = await read_route(routes, "ours")
    assert renewed.fields["differences"] == ["certificate"]
    assert renewed.outputs == own_route.outputs
    repaired = await update_route(routes, renewed, hosts=["a.example.org"], tls=tls)
    assert repaired.fields["differences"] == []
    assert repaired.outputs["certificate"] != own_route.outputs["certificate"]
    await admin.send("DELETE", "/id/ours:certificate")
    assert (await read_route(routes, "ours")).fields["differences"] == ["certificate"]
    assert (await update_route(routes, await read_route(routes, "ours"), **_tls(tls))).fields[
        "differences"
    ] == []
    await routes.delete(with_version_of(action("Delete", "ours", {}), repaired))
    assert await admin.find("ours:certificate") is None


def _tls(tls: Fields) -> Fields:
    return {"hosts": ["a.example.org"], "tls": tls}


async def test_unusable_files_do_not_remove_the_certificate_or_block_other_changes(
    routes: Provider, admin: CaddyAdmin, authority: trustme.CA, tmp_path: Path
) -> None:
    tls = write_certificate(tmp_path, authority.issue_cert("a.example.org"))
    own_route = await create_route(routes, "ours", **_tls(tls))
    good = await admin.find("ours:certificate")
    good_key = read_file(tls["keyFile"])
    other_key = authority.issue_cert("a.example.org").private_key_pem.bytes()
    for content, reason in (
        (other_key, "KEY_VALUES_MISMATCH"),
        (b"\xff", "not a PEM file"),
        (None, "tls.key: No such file"),
    ):
        put(tls["keyFile"], content)
        existing = await read_route(routes, "ours")
        assert (existing.fields["differences"], existing.outputs["certificate"]) == (
            [],
            own_route.outputs["certificate"],
        )
        assert reason in existing.outputs["certificateProblem"]
        assert ROUTE.ready(existing.fields, existing).reason == "CertificateFiles"
        with pytest.raises(NotDoneError, match=reason):
            await create_route(routes, "new", **_tls(tls))
        assert await admin.find("new") is None
        changed = await update_route(routes, existing, **_tls(tls), backends=[f"{reason[:2]}:1"])
        assert changed.fields["backends"] == [f"{reason[:2].lower()}:1"]
        assert await admin.find("ours:certificate") == good
        assert "PRIVATE KEY" not in repr(changed)
    put(tls["keyFile"], good_key)
    assert "certificateProblem" not in (await read_route(routes, "ours")).outputs


async def test_a_certificates_key_is_hidden_in_caddys_messages(
    caddy_server: Caddy, admin: CaddyAdmin, authority: trustme.CA, tmp_path: Path
) -> None:
    """The worker sends the key to Caddy; a later message from Caddy may reach the observer."""
    certificate = authority.issue_cert("a.example.org")
    tls = write_certificate(tmp_path, certificate)
    _, line, *_ = certificate.private_key_pem.bytes().decode().splitlines()
    worker, observer = Secrets(), Secrets()
    await create_route(connect_routes(caddy_server, worker), "ours", **_tls(tls))
    assert worker.secrecy.is_in(f"loading new config: {line}")
    await listing(connect_routes(caddy_server, observer), Scope())
    assert observer.secrecy.is_in(f"loading new config: {line}")
    assert await admin.find("ours") is not None


async def test_a_certificate_is_loaded_into_a_configuration_without_tls(
    routes: Provider, admin: CaddyAdmin, authority: trustme.CA, tmp_path: Path
) -> None:
    tls = write_certificate(tmp_path, authority.issue_cert("a.example.org"))
    config_before = await admin.get("/config/apps/tls")
    configs: list[Fields | None] = [None, {}, {"certificates": {}}]
    try:
        for number, content in enumerate(configs):
            await admin.send("DELETE", "/config/apps/tls")
            if content is not None:
                await admin.send("PUT", "/config/apps/tls", content)
            own_route = await create_route(routes, f"ours-{number}", **_tls(tls))
            assert own_route.fields["differences"] == []
            await routes.delete(with_version_of(action("Delete", own_route.name, {}), own_route))
    finally:
        await admin.send("PATCH", "/config/apps/tls", config_before)


async def test_an_orphaned_certificate_is_deleted_with_its_route(
    routes: Provider, admin: CaddyAdmin, authority: trustme.CA, tmp_path: Path
) -> None:
    own_route = await create_route(
        routes, "ours", **_tls(write_certificate(tmp_path, authority.issue_cert("a.example.org")))
    )
    await admin.send("DELETE", "/id/ours")
    assert await routes.read("ours") is None
    assert (await routes.delete(with_version_of(action("Delete", "ours", {}), own_route))).absent
    assert await admin.find("ours:certificate") is None


# --- the size of the configuration


async def test_a_namespace_cannot_fill_the_configuration_for_the_others(
    routes: Provider, admin: CaddyAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration that cannot be read whole would block all writes, also deletions."""
    bob = await create_route(routes, "bob", "bob")
    empty = measure(msgspec.json.encode(await admin.get(APPS)))
    monkeypatch.setattr(capacity, "MAX_CONFIG_BYTES", empty + 45_000)
    large = [f"/{number:0>1000}" for number in range(10)]  # about 20 kB, as each is two patterns
    more = [f"/{number:x>1000}" for number in range(2)]
    results = await asyncio.gather(
        *(
            routes.create(route_action("Create", name, namespace, hosts=[name], paths=large))
            for name, namespace in (("alice1", "alice"), ("alice2", "alice"))
        ),
        routes.create(route_action("Create", "bob2", "bob")),
        return_exceptions=True,
    )
    created = [each.object for each in results if isinstance(each, Effect)]
    assert [each.name for each in created if each is not None] == ["alice1", "bob2"]
    assert isinstance(results[1], NotDoneError), "retried, until there is room"
    assert "has no room for route 'alice2'" in results[1].message
    alice = created[0]
    assert alice is not None
    with pytest.raises(NotDoneError, match="has no room for route 'alice1'"):
        await update_route(routes, alice, "alice", paths=[*large, *more])
    assert (await admin.find("alice1") or {})["@id"] == "alice1"
    await update_route(routes, alice, "alice", paths=large, backends=["127.0.0.1:19001"])
    await update_route(routes, bob, "bob", paths=more)
    await routes.delete(with_version_of(route_action("Delete", "alice1"), alice))
    assert await create_route(routes, "alice2", "alice", paths=large[:8])


async def test_a_certificate_counts_towards_the_size_of_its_route(
    routes: Provider,
    admin: CaddyAdmin,
    authority: trustme.CA,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tls = write_certificate(tmp_path, authority.issue_cert("a.example.org"))
    own_route = await create_route(routes, "ours", **_tls(tls))
    empty = measure(msgspec.json.encode(await admin.get(APPS)))
    monkeypatch.setattr(capacity, "MAX_CONFIG_BYTES", empty + 5_000)
    put(tls["certificateFile"], read_file(tls["certificateFile"]) + b"\n" * 10_000)
    with pytest.raises(NotDoneError, match="has no room for route 'ours'"):
        await update_route(routes, own_route, **_tls(tls))
    with pytest.raises(NotDoneError, match="has no room for route 'second'"):
        await create_route(routes, "second", **_tls(tls))
    assert await admin.find("second") is None
    assert (await update_route(routes, own_route, hosts=["a.example.org"], server="https")).name


# --- many routes


async def test_a_thousand_routes_are_listed_and_one_is_changed(
    routes: Provider, admin: CaddyAdmin
) -> None:
    own_route = await create_route(routes, "one", hosts=["one.example.org"])
    route = await admin.find("one")
    many = [
        {**(route or {}), "@id": f"r{number}", "match": [{"host": [f"r{number}.example.org"]}]}
        for number in range(MANY)
    ]
    await admin.send("PATCH", f"{SERVERS}/http/routes", [route, *many])
    started_at = time.monotonic()
    listed = await listing(routes, Scope(), page_size=300)
    assert len(listed) == MANY + 1
    assert not [
        each for each in listed if each.fields["differences"] or "shadowedBy" in each.outputs
    ]
    changed = await update_route(routes, own_route, hosts=["other.example.org"])
    assert changed.fields["hosts"] == ["other.example.org"]
    assert time.monotonic() - started_at < 5, "takes tenths of a second on an idle machine"
    await admin.send("PATCH", f"{SERVERS}/http/routes", [])


async def test_routes_with_many_hosts_and_paths_do_not_block_the_process(
    routes: Provider, admin: CaddyAdmin
) -> None:
    """The process makes the calls of all tenants, and checks all routes for each call."""
    await create_route(routes, "one", hosts=["one.example.org"])
    route = await admin.find("one")
    paths = [each for number in range(10) for each in (f"/{number}", f"/{number}/*")]
    many = [
        {
            **(route or {}),
            "@id": f"r{number}",
            "match": [{"host": [f"h{each}.r{number}.org" for each in range(100)], "path": paths}],
        }
        for number in range(MANY)
    ]
    await admin.send("PATCH", f"{SERVERS}/http/routes", [*many, route])
    async with measure_event_loop() as cost:
        await update_route(routes, await read_route(routes, "one"), hosts=["h1.r1.org"])
    assert cost.blocked_seconds < 0.3
    await admin.send("PATCH", f"{SERVERS}/http/routes", [])


async def test_concurrent_creations_are_one_change_with_separate_results(
    routes: Provider, admin: CaddyAdmin
) -> None:
    await create_route(routes, "taken")
    inner: dict[str, Any] = {"@id": "nested", "handle": []}
    await admin.send(
        "POST",
        f"{SERVERS}/http/routes",
        {"handle": [{"handler": "subroute", "routes": [inner]}]},
    )
    good = [action("Create", f"r{each}", route_fields(hosts=[f"r{each}.org"])) for each in range(5)]
    bad = action("Create", "bad", {**route_fields(), "balancing": "nonesuch"})
    rejected_actions = [
        action("Create", "taken", route_fields()),
        action("Create", "nested", route_fields()),
        action("Create", "elsewhere", route_fields(server="other")),
    ]
    first, *results = await asyncio.gather(
        *map(routes.create, [*good, bad]), return_exceptions=True
    )
    results += await asyncio.gather(
        *map(routes.create, [action("Create", "late", route_fields()), *rejected_actions]),
        return_exceptions=True,
    )
    late = results.pop(5)
    observed_routes = {each.name: each for each in await listing(routes, Scope())}
    for effect in (first, *results[:4], late):
        assert isinstance(effect, Effect)
        assert effect.object is not None
        assert effect.object == observed_routes.pop(effect.object.name)
    assert observed_routes.keys() == {"taken"}
    refused = [RefusedError, ConflictError, NotDoneError, NotDoneError]
    assert [type(each) for each in results[4:]] == refused
    for each in good:
        assert (await routes.create(each)).replayed


async def test_many_concurrent_creations_make_few_writes(
    routes: Provider, admin: CaddyAdmin
) -> None:
    await create_route(routes, "first")
    counter = RequestCounter()
    token = CALL_GATE.set(counter)
    await asyncio.gather(
        *(create_route(routes, f"r{each}", hosts=[f"r{each}.org"]) for each in range(30))
    )
    CALL_GATE.reset(token)
    assert counter.requests < 30 * 3 + 10, "three reads per creation, and few writes"
    assert len(await listing(routes, Scope())) == 31


async def test_an_interrupted_batch_has_unknown_results_and_can_be_retried(
    routes: Provider, admin: CaddyAdmin
) -> None:
    await create_route(routes, "first")
    expected_actions = [action("Create", f"r{each}", route_fields()) for each in range(3)]
    blocked = asyncio.Event()
    # The first is sent alone, in four requests; then the second and third are sent together.
    token = CALL_GATE.set(RequestCounter(blocked_request=7, reached=blocked))
    tasks = [asyncio.create_task(routes.create(each)) for each in expected_actions]
    CALL_GATE.reset(token)
    await blocked.wait()
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = [type(each) for each in results]
    assert kinds == [Effect, asyncio.CancelledError, UnknownResultError]
    for each in expected_actions:
        assert (await routes.create(each)).object is not None
    assert len(await listing(routes, Scope())) == 4


async def test_a_list_of_routes_is_created_on_a_server_without_one(
    routes: Provider, admin: CaddyAdmin
) -> None:
    content = {"listen": ["127.0.0.1:0"], "automatic_https": {"disable": True}}
    await admin.send("PUT", f"{SERVERS}/bare", content)
    try:
        await asyncio.gather(
            *(create_route(routes, f"r{each}", server="bare") for each in range(3))
        )
        assert sorted(await admin.names("bare"), key=str) == ["r0", "r1", "r2"]
    finally:
        await admin.send("DELETE", f"{SERVERS}/bare")


async def test_concurrent_creations_are_serialized_and_ordered(
    routes: Provider, admin: CaddyAdmin
) -> None:
    paths = ["/", "/a", "/a/b", "/a/b/c", "/a/b/c/d"]
    await asyncio.gather(
        *(
            create_route(routes, f"r{number}", hosts=["a.example.org"], paths=[path])
            for number, path in enumerate(paths)
        )
    )
    assert await admin.names() == ["r4", "r3", "r2", "r1", "r0"]
