"""One application on all systems is used, changed out of band, repaired, and withdrawn (39)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.needs import skip_unless_in_ci
from tests.shop.image import psql_problem
from tests.site.systems import CONTAINERS, HOST, Site, site_folder

pytestmark = [
    pytest.mark.own_dockerd,
    pytest.mark.postgres,
    pytest.mark.caddy,
    pytest.mark.nftables,
    pytest.mark.slow,
]


@pytest.fixture
def site() -> Iterator[Site]:
    problem = psql_problem()
    if problem is not None:
        skip_unless_in_ci(problem)
    with site_folder() as folder:
        site = Site(folder)
        try:
            site.dns.start()
            site.start()
            site.make_image()
            site.configure()
            yield site
        finally:
            site.close()


def out_of_band_changes(site: Site) -> Mapping[str, Callable[[], object]]:
    """Return an out-of-band change for each system, by resource."""
    return {
        "Container/site-2": lambda: site.docker.post("/containers/site-2/kill"),
        "Service/site": site.flush_rules,
        "Route/site": site.delete_route,
        "Certificate/site": (site.cli.folder / "tls/site/tls.key").unlink,
        "DatabaseRole/site-app": lambda: site.psql("ALTER ROLE \"site-app\" PASSWORD 'guessed'"),
        "Grant/site-app-connects": lambda: site.psql('REVOKE ALL ON DATABASE site FROM "site-app"'),
        "Address/www": lambda: site.dns.overwrite(HOST, "198.51.100.1"),
    }


@pytest.mark.timeout(400)  # many changes and repairs
def test_39_an_application_is_repaired_and_withdrawn_while_one_api_is_down(
    site: Site,
) -> None:
    site.declare()
    assert site.wait_for_visits(40) == set(CONTAINERS), "all three containers must respond"

    for name, change in out_of_band_changes(site).items():
        drifts_before = site.drifts(name)
        change()
        site.wait_until(
            lambda name=name, drifts_before=drifts_before: site.is_repaired(name, drifts_before),
            f"{name} is repaired",
        )
    assert site.wait_for_visits(30) == set(CONTAINERS)

    site.dns.stop()
    site.withdraw()
    site.wait_until(lambda: len(site.resources()) == 1, "only the record is left")
    [(kind, outcome, message)] = site.resources()
    assert (kind, outcome) == ("Address", "Degraded")
    assert message, "the message must name the reason"
    site.dns.start()
    site.wait_until(lambda: not site.resources(), "the record is deleted, too")
    assert site.find_leftovers() == []
    site.stop()


@pytest.mark.timeout(400)
def test_39_random_kills_leave_no_duplicates_or_leftovers(site: Site) -> None:
    rng = random.Random(39)

    def kill_and_restart_within(seconds: float) -> None:
        time.sleep(rng.uniform(0.1, seconds))
        site.kill()
        site.start()

    site.start_command("apply")
    kill_and_restart_within(5)
    site.declare()
    site.wait_for_visits(10)

    for name, change in rng.sample(sorted(out_of_band_changes(site).items()), 3):
        drifts_before = site.drifts(name)
        change()
        kill_and_restart_within(1)
        site.wait_until(
            lambda name=name, drifts_before=drifts_before: site.is_repaired(name, drifts_before),
            f"{name} is repaired",
        )
    assert site.wait_for_visits(30) == set(CONTAINERS)
    assert site.docker_names() == sorted(CONTAINERS)

    site.start_command("delete")
    kill_and_restart_within(3)
    site.withdraw()
    kill_and_restart_within(3)
    site.wait_until(lambda: not site.resources(), "all resources are deleted")
    assert site.find_leftovers() == []
    site.cli.ok("replay", "--verify")
    site.stop()
