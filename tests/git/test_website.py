"""From Git to the browser: a commit becomes a website on four systems."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cli.runner import REPOSITORY, Cli, Up, up
from tests.engines import EngineAdmin
from tests.folders import short_folder
from tests.git.repositories import AUTHOR, Repository
from tests.host_access import allow_more

pytestmark = [pytest.mark.own_dockerd, pytest.mark.caddy, pytest.mark.nftables, pytest.mark.slow]

EXAMPLE = REPOSITORY / "examples" / "website"
HOST = "hello.example.org"
TABLE = "websites"
TIMEOUT_SECONDS = 90.0


class Website:
    """The example, with its changes and visitors."""

    def __init__(self, folder: Path) -> None:
        self.cli = Cli(folder)
        self.repository = Repository(folder / "git")
        self.running: Up
        self.docker: EngineAdmin
        self._up = ExitStack()

    # --- its systems

    def start(self) -> None:
        systems = ("--no-api", "--with", "docker,caddy,composition", "--resync", "2")
        self.running = self._up.enter_context(up(self.cli, *systems))
        self.docker = EngineAdmin(self.running.ready["components"]["docker"])

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()
        self._up.close()

    def end(self) -> None:
        """Remove everything, even after a failure."""
        self._up.close()
        subprocess.run(["nft", "delete", "table", "ip", TABLE], capture_output=True, check=False)

    def configure(self) -> None:
        """Import the image, and apply the page's files with the addresses of this run."""
        self.docker.import_image("busybox:1", "ENV PATH=/bin")
        tls = self.cli.folder / "tls"
        tls.mkdir()
        (tls / ".reconciler-root").touch()
        self.cli.ok("apply", "-f", str(EXAMPLE / "kind.yaml"))
        self.find_systems()
        self.repository.write(
            {"deploy/website.yaml": (EXAMPLE / "deploy/website.yaml").read_text()}
        )
        self.repository.commit("Say hello")

    def find_systems(self) -> None:
        """Declare the systems' addresses; after a restart, the bus of `up` has a different port."""
        tls = f"file://{self.cli.folder / 'tls'}"
        bus = self.cli.ok("get", "ProviderConfig", "composition", "-o", "yaml").out
        self.cli.ok("apply", "-f", "-", text=bus.replace(": composition", ": websites"))
        self._apply("systems.yaml", {"file:///srv/tls": tls})
        allow_more(self.cli, "caddy", certificates=f"{self.cli.folder}/tls/**")
        allow_more(self.cli, "composition", addresses=self.repository.url)

    def declare(self) -> None:
        replacements = {
            "file:///srv/git/websites": self.repository.url,
            "Seconds: 10": "Seconds: 1",
        }
        self._apply("source.yaml", replacements)

    def _apply(self, name: str, replacements: dict[str, str]) -> None:
        text = (EXAMPLE / name).read_text()
        for before, after in replacements.items():
            assert before in text, before
            text = text.replace(before, after)
        self.cli.ok("apply", "-f", "-", text=text)

    def commit(self, before: str, after: str) -> str:
        file = self.repository.folder / "deploy/website.yaml"
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))
        return self.repository.commit(f"change {before} to {after}")

    # --- usage

    def visit(self, url: str) -> str:
        """Request the page like a browser, with TLS and the CA."""
        context = ssl.create_default_context(cafile=str(self.cli.folder / "tls/hello/ca.crt"))
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 443), 10) as plain:
            connection = HTTPSConnection(HOST, context=context)
            connection.sock = context.wrap_socket(plain, server_hostname=HOST)
            connection.request("GET", "/")
            response = connection.getresponse()
            text = response.read().decode().strip()
            assert response.status == 200, (response.status, text)
            return text

    def url(self) -> str:
        [url] = self.cli.ok("get", "Route", "hello", "-o", "json").json["status"]["outputs"]["urls"]
        return url

    def wait_for_text(self, text: str) -> None:
        def has_text() -> bool:
            with suppress(AssertionError, OSError, HTTPException, KeyError):
                return self.visit(self.url()) == text
            return False

        self.until(has_text, f"the page contains {text!r}")

    def until(self, condition: Callable[[], Any], description: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            output = self.cli.run("get").out + self.cli.run("get", "-o", "yaml").out[-6000:]
            assert time.monotonic() < deadline, f"{description}\n{output}"
            time.sleep(1.0)

    def is_ready(self) -> bool:
        result = self.cli.run("get", "GitSource", "websites", "-o", "json")
        conditions: list[Any] = [] if result.status else result.json["status"]["conditions"]
        return bool(conditions) and all(each["status"] == "True" for each in conditions)

    def message(self) -> str:
        rows = self.cli.ok("get", "GitSource", "websites", "-o", "json").json
        return " ".join(each.get("message", "") for each in rows["status"]["conditions"])

    def texts(self) -> Counter[str]:
        """Count the texts that the running containers serve."""
        containers = self.docker.http.get("/containers/json").json()
        inspected = [self.docker.inspect(each["Id"]) or {} for each in containers]
        return Counter(
            variable.removeprefix("TEXT=")
            for each in inspected
            if "Config" in each  # otherwise it was deleted after the listing
            for variable in each["Config"]["Env"]
            if variable.startswith("TEXT=")
        )

    def kinds(self) -> Counter[str]:
        return Counter(each["kind"] for each in self.cli.ok("get", "-o", "json").json)

    def find_leftovers(self) -> list[str]:
        rules = subprocess.run(
            ["nft", "list", "table", "ip", TABLE], capture_output=True, text=True, check=False
        )
        admin = self.running.ready["components"]["caddy"].removeprefix("unix://")
        with httpx.Client(transport=httpx.HTTPTransport(uds=admin)) as client:
            routes = client.get("http://localhost/config/").text
        containers = self.docker.http.get("/containers/json", params={"all": "1"}).json()
        files = list((self.cli.folder / "tls/hello").glob("tls.*"))
        leftovers = {"rules": "198.18.0.81" in rules.stdout, "routes": HOST in routes}
        return [
            *(name for name, exists in leftovers.items() if exists),
            *map(str, (*containers, *files)),
        ]


class Visitors:
    """Visitors that send requests continuously, and record the failures."""

    def __init__(self, website: Website, url: str) -> None:
        self.responses: Counter[str] = Counter()
        self.failed: list[str] = []
        self._website, self._url = website, url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_requests)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send_requests(self) -> None:
        while not self._stop.wait(0.02):
            try:
                self.responses[self._website.visit(self._url)] += 1
            except (AssertionError, OSError, HTTPException) as error:
                self.failed.append(repr(error))


@pytest.fixture
def website() -> Iterator[Website]:
    with short_folder() as folder:
        website = Website(folder)
        try:
            website.start()
            website.configure()
            yield website
        finally:
            website.end()


@pytest.mark.timeout(300)
def test_a_commit_becomes_a_website_that_is_rolled_out_and_withdrawn(website: Website) -> None:
    first = website.repository.head
    website.declare()
    website.wait_for_text("version 1")
    website.until(website.is_ready, "everything is ready")
    kinds = website.kinds()
    assert {name: kinds[name] for name in ("Website", "Deployment", "Service", "Route")} == {
        "Website": 1,
        "Deployment": 1,
        "Service": 1,
        "Route": 1,
    }
    assert (kinds["Container"], kinds["Certificate"]) == (3, 1)

    containers = website.cli.ok("get", "Container", "-o", "json").json
    output = website.cli.ok("why", f"Container/{containers[0]['metadata']['name']}").out
    explanation = " ".join(output.split())
    for text in (f"commit {first[:12]} by {AUTHOR}", "deploy/website.yaml:2", "Deployment/hello"):
        assert text in explanation, output

    with Visitors(website, website.url()) as visitors:
        website.until(lambda: visitors.responses["version 1"] > 20, "the site is used")
        website.commit("version 1", "version 2")
        website.until(lambda: visitors.responses["version 2"] > 20, "the new version is rolled out")
        website.until(
            lambda: website.texts() == {"version 2": 3}, "all containers run the new version"
        )
    assert visitors.failed == []
    assert visitors.responses.keys() == {"version 1", "version 2"}

    bad = website.commit("replicas: 3", "replicas: many")
    text = f"commit {bad[:12]} by {AUTHOR}: deploy/website.yaml:10: default/Website/hello: "
    website.until(lambda: text in website.message(), "the error is reported")
    assert website.visit(website.url()) == "version 2"
    website.commit("replicas: many", "replicas: 2")
    website.until(lambda: website.texts() == {"version 2": 2}, "the error is fixed")

    website.cli.ok("delete", "GitSource", "websites", "--wait", "--timeout", "60s")
    website.until(lambda: website.find_leftovers() == [], "nothing is left")
    assert website.kinds() == {"Issuer": 1}
    website.cli.ok("replay", "--verify")


@pytest.mark.timeout(400)
def test_a_rollout_continues_after_any_process_is_killed(website: Website) -> None:
    rng = random.Random(15)

    def kill_and_restart_within(seconds: float) -> None:
        time.sleep(rng.uniform(0.1, seconds))
        website.kill()
        website.start()
        website.find_systems()

    website.declare()
    kill_and_restart_within(4)
    website.wait_for_text("version 1")
    for number in (2, 3):
        website.commit(f"version {number - 1}", f"version {number}")
        kill_and_restart_within(4)
        kill_and_restart_within(4)
        expected = {f"version {number}": 3}
        website.until(
            lambda expected=expected: website.texts() == expected,
            f"the version is rolled out: {expected}",
        )
        website.wait_for_text(f"version {number}")
    website.until(website.is_ready, "everything is ready")
    assert website.kinds()["Container"] == 3
    website.cli.ok("delete", "GitSource", "websites")
    kill_and_restart_within(3)
    website.until(lambda: website.find_leftovers() == [], "nothing is left")
    website.until(lambda: website.kinds() == {"Issuer": 1}, "nothing is declared")
    website.cli.ok("replay", "--verify")
