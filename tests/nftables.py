"""Network namespaces for tests, with clients and backends outside the reconciler."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import select
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from infra.providers.nftables.flows import conntrack_problem
from infra.providers.nftables.nft import SEARCH_PATH, nft_problem

CONNECTED_SECONDS = 5.0
_NEW_NETWORK = 0x40000000
_T = TypeVar("_T")


@functools.cache
def nftables_problem() -> str | None:
    """Return why this machine cannot have network namespaces with nftables; None if it can."""
    if (problem := nft_problem()) is not None:
        return problem
    if os.geteuid() != 0:
        return "only root can create network namespaces"
    if shutil.which("ip", path=SEARCH_PATH) is None:
        return "the ip program is not installed (iproute2 package)"
    if (problem := conntrack_problem()) is not None:
        return problem
    return _kernel_problem()


def _kernel_problem() -> str | None:
    """Try it, because a container may have the programs but lack the privileges or the module."""
    try:
        with namespace() as probe:
            probe.nft("add table ip tried { chain c { type nat hook prerouting priority -100; }; }")
    except subprocess.CalledProcessError as error:
        return f"cannot create a network namespace with nftables here: {error.stderr.strip()}"
    return None


def run(*command: str, stdin: str | None = None) -> str:
    """Run a program, and return its output."""
    return subprocess.run(
        command,
        check=True,
        text=True,
        capture_output=True,
        input=stdin,
        env={**os.environ, "PATH": SEARCH_PATH, "LC_ALL": "C"},
    ).stdout


def configure(namespace: str, *commands: str) -> None:
    """Run ip commands in a namespace, all by one process."""
    run("ip", "-n", namespace, "-batch", "-", stdin="\n".join(commands))


class Namespace:
    """A network namespace of a test."""

    def __init__(self, name: str) -> None:
        self.name = name

    def endpoint(self, table: str = "reconciler") -> str:
        return f"netns:{self.name}/{table}"

    def nft(self, script: str, *options: str) -> str:
        """Run an nft script outside the reconciler."""
        return run(
            "nsenter", f"--net=/run/netns/{self.name}", "nft", *options, "-f", "-", stdin=script
        )

    def ruleset(self, *without: str) -> str:
        """Return the complete ruleset except some tables."""
        tables = self.nft("list tables").split("\n")
        expected = [each for each in tables if each and each.split()[-1] not in without]
        return "".join(self.nft(f"list {each}", "-a") for each in expected)

    def run_inside(self, do: Callable[[], _T]) -> _T:
        """Call a function in the namespace; a socket that it creates stays in the namespace."""
        results: list[_T] = []

        def in_thread() -> None:
            file = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(file, _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
            os.close(file)
            results.append(do())

        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        return results[0]

    def socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        return self.run_inside(lambda: socket.socket(socket.AF_INET, kind))


@contextmanager
def namespace(name: str | None = None, *commands: str) -> Generator[Namespace]:
    """Create a namespace, run ip commands in it, and remove it at the end."""
    name = name or f"rec-{uuid.uuid4().hex[:10]}"
    run("ip", "netns", "add", name)
    try:
        configure(name, "link set lo up", *commands)
        yield Namespace(name)
    finally:
        run("ip", "netns", "del", name)


class Backend:
    """Responds to each connection with its name and the client's address, and closes it."""

    def __init__(self, host: Host, port: int) -> None:
        self.host, self.port = host, port
        self.listening = host.namespace.socket()
        self.listening.bind((host.address, port))
        self.listening.listen(256)
        self._thread = threading.Thread(target=self._respond, daemon=True)
        self._thread.start()

    def _respond(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, (address, _) = self.listening.accept()
                with client:
                    client.sendall(f"{self.host.name} {address}".encode())

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self._thread.join()


class Host:
    """A host behind the router."""

    def __init__(self, name: str, namespace: Namespace, address: str) -> None:
        self.name, self.namespace, self.address = name, namespace, address

    def connect(self, address: str, port: int) -> str:
        """Connect and return the response; raises ``ConnectionRefusedError``."""
        with self.namespace.socket() as client:
            client.settimeout(CONNECTED_SECONDS)
            client.connect((address, port))
            return client.recv(100).decode()

    def send_datagram(self, address: str, port: int) -> str:
        """Send a datagram and return the response; raises ``ConnectionRefusedError``."""
        with self.namespace.socket(socket.SOCK_DGRAM) as client:
            client.settimeout(CONNECTED_SECONDS)
            client.connect((address, port))
            client.send(b"?")
            return client.recv(100).decode()


class Network:
    """Clients and backends, each with its own link to one router, which has the services."""

    def __init__(self, router: Namespace) -> None:
        self.router = router
        self.clients: list[Host] = []
        self.backends: list[Backend] = []
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count(1)

    def host(self, name: str) -> Host:
        """Add a host."""
        number = next(self._numbers)
        new_namespace = self._stack.enter_context(namespace(f"{self.router.name}-{name}"))
        wire = f"v{uuid.uuid4().hex[:10]}"
        gateway, address = f"10.77.{number}.1", f"10.77.{number}.2"
        configure(
            self.router.name,
            f"link add {wire} type veth peer name eth0 netns {new_namespace.name}",
            f"address add {gateway}/24 dev {wire}",
            f"link set {wire} up",
        )
        configure(
            new_namespace.name,
            f"address add {address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {gateway}",
        )
        return Host(name, new_namespace, address)

    def close(self) -> None:
        for each in self.backends:
            each.close()
        self._stack.close()


@contextmanager
def network(*, clients: int, backends: int) -> Generator[Network]:
    """Create a small network without any services."""
    # The router's own connections to a virtual address need a route.
    with namespace(None, "route add 198.18.0.0/15 dev lo") as router:
        forward = Path("/proc/sys/net/ipv4/ip_forward")
        router.run_inside(lambda: forward.write_text("1"))
        net = Network(router)
        try:
            net.clients += [net.host(f"c{number}") for number in range(clients)]
            for number in range(backends):
                net.backends.append(Backend(net.host(f"b{number}"), 8080 + number))
            yield net
        finally:
            net.close()


class Flow:
    """A client that sends all its datagrams from one port."""

    def __init__(self, client: Host, address: str, port: int) -> None:
        self._socket = client.namespace.socket(socket.SOCK_DGRAM)
        self._socket.settimeout(CONNECTED_SECONDS)
        self._socket.connect((address, port))

    def send(self) -> str:
        """Send a datagram and return the response; raises ``ConnectionRefusedError``."""
        self._socket.send(b"?")
        return self._socket.recv(100).decode()

    def send_unanswered(self) -> None:
        """Send a datagram without waiting for a response."""
        self._socket.send(b"?")

    def close(self) -> None:
        self._socket.close()


class Echo:
    """Responds to datagrams with its name and the client's address."""

    def __init__(self, host: Host, port: int) -> None:
        self.host, self.port = host, port
        self.socket = host.namespace.socket(socket.SOCK_DGRAM)
        self.socket.bind((host.address, port))
        self._ended = False
        self._thread = threading.Thread(target=self._respond, daemon=True)
        self._thread.start()

    def _respond(self) -> None:
        while not self._ended:
            if select.select([self.socket], [], [], 0.05)[0]:
                _, client = self.socket.recvfrom(100)
                self.socket.sendto(f"{self.host.name} {client[0]}".encode(), client)

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self.socket.close()


def is_refused_within(seconds: float, call: Callable[[], object]) -> bool:
    """Return whether a call is refused within the time limit, and does not time out."""
    began = time.monotonic()
    try:
        call()
    except ConnectionRefusedError:
        return time.monotonic() - began < seconds
    return False
