"""Host access through declarations: what each kind can reach, and what prevents it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from events.allow import Allow, check_allow
from events.manifest import Fields, InvalidManifestError, Manifest, split_manifest
from events.provider_config import ProviderConfigSpec
from events.reference import has_reference
from infra.providers.caddy.route import ROUTE
from infra.providers.certificates.certificate import CERTIFICATE
from infra.providers.certificates.issuer import ISSUER
from infra.providers.docker.container import CONTAINER
from infra.providers.docker.volume import VOLUME
from infra.providers.file import FILE
from infra.providers.git.source import GIT_SOURCE
from infra.providers.nftables.service import SERVICE
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.role import DATABASE_ROLE
from reconciler.cli.components import BUS_APIS, COMPONENTS
from reconciler.provider.host_access import (
    find_refused_use,
    is_host_address,
    names_host,
    no_host_uses,
)
from reconciler.provider.kind import PROVIDER_CONFIG, Kind, installed_kinds
from tests.cli.runner import REPOSITORY


def find_refusal(kind: Kind, fields: Fields, **allow: tuple[str, ...]) -> str | None:
    """Return the forbidden use as ``FIELD: CATEGORY VALUE``, or None if all uses are allowed."""
    checked = kind.check_declared(fields)
    use = find_refused_use(kind.find_host_uses(checked), Allow(**allow))
    return None if use is None else f"{use.path}: {use.category} {use.value}"


def container(**fields: object) -> Fields:
    return {"image": "busybox:1", "user": "1000", **fields}


def bind(source: str) -> Fields:
    return container(mounts=[{"target": "/x", "type": "bind", "source": source}])


OWN_CA = {"commonName": "Root"}


def acme(directory: str, listen: str | None = None) -> Fields:
    http01 = {"folder": "challenges"} if listen is None else {"listen": listen}
    return {"acme": {"directory": directory, "http01": http01, "acceptTerms": True}}


ATTACKS: list[tuple[Kind, Fields, str]] = [
    (CONTAINER, bind("/"), "spec.mounts.source: binds /"),
    (CONTAINER, bind("/run/docker.sock"), "spec.mounts.source: binds /run/docker.sock"),
    (CONTAINER, bind("//etc/./ssl//"), "spec.mounts.source: binds /etc/ssl"),
    (
        CONTAINER,
        container(mounts=[{"target": "/x", "source": "/etc"}]),  # the source of a volume
        "spec.mounts.source: binds /etc",
    ),
    (CONTAINER, container(networks=[{"name": "host"}]), "spec.networks.name: networks host"),
    (CONTAINER, container(networks=[{"name": "others"}]), "spec.networks.name: networks others"),
    (CONTAINER, container(user="0"), "spec.user: users 0"),
    (CONTAINER, container(user="00"), "spec.user: users 00"),
    (CONTAINER, container(user="root"), "spec.user: users root"),
    (
        CONTAINER,
        container(user="app"),
        "spec.user: users app",
    ),  # the image may map it to any number
    (CONTAINER, container(user="1000:0"), "spec.user: users 1000:0"),
    # The Engine reads these from the image's /etc/passwd and passes on 32 bits of them: 0.
    (CONTAINER, container(user="4294967296"), "spec.user: users 4294967296"),
    (CONTAINER, container(user="1000:8589934592"), "spec.user: users 1000:8589934592"),
    (CONTAINER, container(user="2147483648"), "spec.user: users 2147483648"),
    (CONTAINER, {"image": "busybox:1"}, "spec.user: users 0"),  # the image's user
    (
        CONTAINER,
        container(ports=[{"container": 80, "host": 80}]),
        "spec.ports.host: listen 0.0.0.0:80",
    ),
    (
        CONTAINER,
        container(ports=[{"container": 80, "host": 80, "address": "::1"}]),
        "spec.ports.host: listen [::1]:80",
    ),
    (
        VOLUME,
        {"options": {"type": "none", "o": "bind", "device": "/"}},
        "spec.options.device: binds /",
    ),
    (
        VOLUME,
        {"options": {"type": "tmpfs", "o": "size=1m,bind", "device": "/etc"}},
        "spec.options: devices type=tmpfs,device=/etc,o=size=1m,bind",
    ),
    (
        VOLUME,
        {"options": {"type": "overlay", "device": "overlay", "o": "lowerdir=/,upperdir=/tmp"}},
        "spec.options: devices type=overlay,device=overlay,o=lowerdir=/,upperdir=/tmp",
    ),
    (
        VOLUME,
        {"options": {"type": "ext4", "device": "/dev/sda1"}},
        "spec.options: devices type=ext4,device=/dev/sda1",
    ),
    (
        VOLUME,
        {"driver": "plugin", "options": {"path": "/"}},
        "spec.options: devices driver=plugin,path=/",
    ),
    (VOLUME, {"driver": "plugin"}, "spec.options: devices driver=plugin"),
    (FILE, {"content": "x", "owner": "root"}, "spec.owner: users root"),
    (FILE, {"content": "x", "owner": "app", "group": "shadow"}, "spec.owner: users app:shadow"),
    (FILE, {"content": "x", "group": "shadow"}, "spec.group: users :shadow"),
    (FILE, {"content": "x", "mode": "4755"}, "spec.mode: modes 4755"),
    (FILE, {"content": "x", "mode": "2755"}, "spec.mode: modes 2755"),
    (
        ROUTE,
        {"backends": ["127.0.0.1:2019"]},  # Caddy's own admin API
        "spec.backends: addresses 127.0.0.1:2019",
    ),
    (ROUTE, {"backends": ["[::1]:2019"]}, "spec.backends: addresses [::1]:2019"),
    (ROUTE, {"backends": ["localhost:2019"]}, "spec.backends: addresses localhost:2019"),
    (ROUTE, {"backends": ["0.0.0.0:2019"]}, "spec.backends: addresses 0.0.0.0:2019"),
    (
        ROUTE,
        {"backends": ["rebound.test:2019"]},  # Caddy resolves it, possibly several times
        "spec.backends: addresses rebound.test:2019",
    ),
    (ROUTE, {"backends": ["127.1:2019"]}, "spec.backends: addresses 127.1:2019"),
    (
        ROUTE,
        {"backends": [{"address": "169.254.169.254", "port": 80}]},
        "spec.backends: addresses 169.254.169.254:80",
    ),
    (
        ROUTE,
        {
            "backends": [],
            "hosts": ["a.test"],
            "tls": {"certificateFile": "/tls/a.crt", "keyFile": "/root/.ssh/id"},
        },
        "spec.tls.certificateFile: certificates /tls/a.crt",
    ),
    (SERVICE, {"address": "127.0.0.1", "port": 22}, "spec.address: listen 127.0.0.1:22"),
    (ISSUER, acme("https://127.0.0.1:14000/dir"), "spec.acme.directory: addresses 127.0.0.1:14000"),
    (ISSUER, acme("https://[::1]/dir"), "spec.acme.directory: addresses [::1]:443"),
    (ISSUER, acme("https://a.localhost/dir"), "spec.acme.directory: addresses a.localhost:443"),
    (
        ISSUER,
        acme("https://ca.test/dir", "0.0.0.0:22"),
        "spec.acme.http01.listen: listen 0.0.0.0:22",
    ),
    (GIT_SOURCE, {"url": "file:///srv/git"}, "spec.url: addresses file:///srv/git"),
    (GIT_SOURCE, {"url": "file:///srv/%2e%2e/etc"}, "spec.url: addresses file:///srv/../etc"),
    (GIT_SOURCE, {"url": "http://127.0.0.1:8080/x"}, "spec.url: addresses 127.0.0.1:8080"),
    (GIT_SOURCE, {"url": "ssh://git@localhost/x"}, "spec.url: addresses localhost:22"),
    (
        GIT_SOURCE,
        {"url": "https://git.test/x", "render": "helm"},
        "spec.render: renderers helm",
    ),
    (DATABASE_ROLE, {"createRole": True}, "spec.createRole: privileges createRole"),
    (DATABASE_ROLE, {"replication": True}, "spec.replication: privileges replication"),
    (
        DATABASE,
        {"extensions": ["hstore", "dblink"]},  # lets every role connect to the host
        "spec.extensions: privileges extension:dblink",
    ),
    (DATABASE, {"extensions": ["plpython3u"]}, "spec.extensions: privileges extension:plpython3u"),
]


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    ATTACKS,
    ids=[f"{kind.name} {expected}" for kind, _, expected in ATTACKS],
)
def test_host_access_requires_permission(kind: Kind, fields: Fields, expected: str):
    assert find_refusal(kind, fields) == expected
    category, _, value = expected.partition(": ")[2].partition(" ")
    if ".." not in value and kind is not ROUTE:
        assert find_refusal(kind, fields, **{category: (value,)}) is None
    assert find_refusal(kind, fields, **{category: (f"{value}x", f"x{value}")}) == expected


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CONTAINER, container()),
        (CONTAINER, container(user="1000:1000", networks=[{"name": "none"}])),
        (CONTAINER, container(mounts=[{"target": "/x", "source": "data"}])),
        (CONTAINER, container(mounts=[{"target": "/x", "type": "tmpfs"}])),
        (CONTAINER, container(ports=[{"container": 80}])),
        (VOLUME, {}),
        (VOLUME, {"options": {"type": "tmpfs", "device": "tmpfs", "o": "size=16m,uid=7"}}),
        (FILE, {"content": "x", "mode": "0644"}),
        (FILE, {"content": "x", "mode": "600"}),
        (ROUTE, {"backends": ["10.0.0.7:80", "172.17.0.2:8080"]}),
        (ISSUER, {"ownCa": OWN_CA}),
        (ISSUER, acme("https://ca.test/dir")),
        (ISSUER, acme("https://10.0.0.7/dir")),
        (CERTIFICATE, {"issuer": "ca", "dnsNames": ["a.test"], "folder": "tls/a"}),
        (GIT_SOURCE, {"url": "https://git.test/x"}),
        (GIT_SOURCE, {"url": "ssh://git@10.0.0.7/x"}),
        (DATABASE_ROLE, {"login": True, "createDatabase": True}),
        (DATABASE, {"extensions": ["hstore", "pg_trgm", "uuid-ossp"]}),
    ],
)
def test_fields_without_host_access_need_no_permission(kind: Kind, fields: Fields):
    assert find_refusal(kind, fields) is None


def _read_manifests(page: Path) -> list[Manifest]:
    """Return the manifests on a page, or in the directory of an example."""
    if page.is_dir():
        text = "\n---\n".join(each.read_text() for each in sorted(page.rglob("*.yaml")))
    else:
        text = "\n---\n".join(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
    documents: list[Any] = list(yaml.safe_load_all(text))
    return [msgspec.convert(each, Manifest) for each in documents if _is_manifest(each)]


def _is_manifest(document: Any) -> bool:
    return isinstance(document, dict) and "kind" in document


PAGES = [
    *sorted((REPOSITORY / "docs/kinds").glob("*.md")),
    *(each for each in sorted((REPOSITORY / "examples").iterdir()) if each.is_dir()),
]


@pytest.mark.parametrize("page", PAGES, ids=[each.name for each in PAGES])
def test_every_page_and_example_allows_its_host_access(page: Path):
    """In its own ProviderConfig, or in the one that `up` declares."""
    manifests, kinds = _read_manifests(page), installed_kinds()
    allowed = {name: offer.allow for name, offer in COMPONENTS.items()}
    allowed |= BUS_APIS
    for each in manifests:
        if each.kind == "ProviderConfig":
            allowed[each.metadata.name] = msgspec.convert(each.spec, ProviderConfigSpec).allow
    for declared_manifest in manifests:
        kind = kinds.find(declared_manifest.kind)
        if kind is None or not kind.is_external:
            continue
        declared = split_manifest(declared_manifest)
        # Another manifest on the page declares the target of a reference.
        resolved_fields = {
            name: value for name, value in declared.fields.items() if not has_reference(value)
        }
        try:
            fields = kind.check_fields(resolved_fields)
        except InvalidManifestError:
            continue  # a required field is a reference
        use = find_refused_use(kind.find_host_uses(fields), allowed[declared.provider_config])
        assert use is None, f"{declared_manifest.kind}/{declared_manifest.metadata.name}: {use}"


def test_permission_for_root_includes_every_user():
    for user in ("0", "root", "app", "1000:0"):
        assert find_refusal(CONTAINER, container(user=user), users=("0",)) is None
    assert find_refusal(CONTAINER, {"image": "busybox:1"}, users=("0",)) is None
    assert find_refusal(CONTAINER, {"image": "busybox:1"}, users=("app",)) is not None


def test_images_can_be_restricted():
    assert find_refusal(CONTAINER, container(), images=("registry.test/**",)) == (
        "spec.image: images busybox:1"
    )
    allowed = container(image="registry.test/team/app:1")
    assert find_refusal(CONTAINER, allowed, images=("registry.test/**",)) is None
    assert find_refusal(CONTAINER, allowed, images=("registry.test/*",)) is not None


@pytest.mark.parametrize(
    ("hosts", "refused"),
    [
        (["bob.example"], "bob.example"),
        (["a.alice.example", "BOB.example."], "bob.example"),
        (["xalice.example"], "xalice.example"),
        (["*.example"], "*.example"),  # it matches bob.example too
        ([], "*"),  # every host
        (["10.0.0.7"], "10.0.0.7"),
        (["alice.example", "A.alice.example.", "b.a.alice.example", "*.alice.example"], None),
    ],
)
def test_hosts_of_routes_can_be_restricted(hosts: list[str], refused: str | None):
    fields: Fields = {"backends": [], "hosts": hosts}
    expected = None if refused is None else f"spec.hosts: hosts {refused}"
    own = ("alice.example", "*.alice.example")
    assert find_refusal(ROUTE, fields, hosts=own) == expected
    for every in ("*", "**"):
        assert find_refusal(ROUTE, fields, hosts=(every,)) is None
    assert find_refusal(ROUTE, fields) is None


@pytest.mark.parametrize("pattern", ["Alice.example", "alice.example."])
def test_a_pattern_that_matches_no_host_is_refused(pattern: str):
    with pytest.raises(InvalidManifestError, match=r"spec\.allow\.hosts: .* 'alice\.example'"):
        check_allow(Allow(hosts=(pattern,)))


def test_every_field_of_a_container_is_classified():
    """A new field must be classified: does it give access to the host?"""
    restricted = {"image", "user", "mounts", "ports", "networks"}
    harmless = {
        *("command", "entrypoint", "env", "workingDir", "memoryBytes", "cpus", "healthCheck"),
        *("restart", "maxRestarts", "stopSeconds", "running", "anonymousVolumes"),
    }
    assert set(CONTAINER.schema.__struct_encode_fields__) == restricted | harmless


def test_every_kind_is_classified():
    """A new kind must be classified: does it give access to the host?"""
    kinds = [kind for kind in installed_kinds().values() if kind.is_external]
    kinds_with_access = {kind.name for kind in kinds if kind.find_host_uses is not no_host_uses}
    assert kinds_with_access == {
        *(
            "Container",
            "Database",
            "DatabaseRole",
            "File",
            "GitSource",
            "Issuer",
            "Route",
            "Service",
            "Volume",
        )
    }
    assert {kind.name for kind in kinds} - kinds_with_access == {
        *("Bucket", "Consumer", "Grant", "Record", "Shape", "Stream"),  # in their API
        *("Attachment", "Certificate", "Disk"),  # beneath the root of their configuration
        *("Deployment", "ManifestSet"),  # their parts are checked
    }


@pytest.mark.parametrize("source", ["/srv/../etc", "/srv/..", "/../etc"])
def test_a_bind_must_not_contain_parent_directories(source: str):
    with pytest.raises(InvalidManifestError, match=r"must not contain '\.\.'"):
        CONTAINER.check_declared(bind(source))
    assert not Allow(binds=("/srv/**", "/**")).permits("binds", source)


@pytest.mark.parametrize(
    ("pattern", "path", "allowed"),
    [
        ("/srv/data", "/srv/data", True),
        ("/srv/data", "/srv/data/x", False),  # a container may have replaced it with a link
        ("/srv/*", "/srv/data", True),
        ("/srv/*", "/srv/data/x", False),
        ("/srv/*", "/srv", False),
        ("/srv/*/logs", "/srv/a/logs", True),
        ("/srv/*/logs", "/srv/a/b/logs", False),
        ("/**", "/", True),
        ("/**", "/etc/shadow", True),
        ("/srv/a.b", "/srv/axb", False),
        ("/srv/da", "/srv/data", False),
    ],
)
def test_patterns_match_whole_values(pattern: str, path: str, allowed: bool):
    assert Allow(binds=(pattern,)).permits("binds", path) is allowed


@pytest.mark.parametrize(
    "binds",
    [
        ("/srv/data", "/srv/data/x"),
        ("/srv/*", "/srv/a/b"),
        ("/srv/a", "/*/a/b"),
        ("/", "/srv"),
        ("/srv/**",),
        ("srv",),
        ("/srv/../etc",),
        ("/srv/",),
        ("/srv//x",),
    ],
)
def test_a_configuration_may_not_allow_ambiguous_paths(binds: tuple[str, ...]):
    with pytest.raises(InvalidManifestError, match=r"spec\.allow\.binds"):
        check_allow(Allow(binds=binds))
    spec = {"provider": "docker", "endpoint": "unix:///d.sock", "allow": {"binds": list(binds)}}
    with pytest.raises(InvalidManifestError, match=r"spec\.allow\.binds"):
        PROVIDER_CONFIG.check_declared(spec)


@pytest.mark.parametrize("binds", [(), ("/",), ("/**",), ("/srv/a", "/srv/b"), ("/srv/*",)])
def test_separate_paths_may_be_allowed(binds: tuple[str, ...]):
    check_allow(Allow(binds=binds))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "0.1.2.3", "::", "169.254.169.254"),
        *("fe80::1", "fe80::1%eth0", "224.0.0.1", "ff02::1", "255.255.255.255", "fec0::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "100.100.100.200", "fd00:ec2::254", "192.0.0.192"),
        *("168.63.129.16", "fd20:ce::254", "64:ff9b:1::7f00:1", "::ffff:0:127.0.0.1"),
    ],
)
def test_addresses_of_the_host_are_recognized(address: str):
    assert is_host_address(address)
    assert names_host(address)
    assert names_host(f"[{address}]") or ":" not in address


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.17.0.2", "192.168.1.1", "100.64.0.1", "198.18.0.80", "8.8.8.8"),
        *("fd00::1", "2001:db8::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"),
    ],
)
def test_addresses_of_other_machines_are_not_host_addresses(address: str):
    assert not is_host_address(address)
