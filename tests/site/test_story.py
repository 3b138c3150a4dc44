"""One application over all systems: it is used, broken by hand, healed, and withdrawn (39)."""

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
            site.end()


def harms(site: Site) -> Mapping[str, Callable[[], object]]:
    """What people do to each system behind the reconciler's back, by what it is done to."""
    return {
        "Container/site-2": lambda: site.docker.post("/containers/site-2/kill"),
        "Service/site": site.flush_rules,
        "Route/site": site.delete_route,
        "Certificate/site": (site.cli.folder / "tls/site/tls.key").unlink,
        "DatabaseRole/site-app": lambda: site.psql("ALTER ROLE \"site-app\" PASSWORD 'guessed'"),
        "Grant/site-app-connects": lambda: site.psql('REVOKE ALL ON DATABASE site FROM "site-app"'),
        "Address/www": lambda: site.dns.overwrite(HOST, "198.51.100.1"),
    }


@pytest.mark.timeout(400)  # as much as a person does in an hour
def test_39_an_application_is_used_broken_healed_and_withdrawn_while_one_api_is_down(
    site: Site,
) -> None:
    site.declare()
    assert site.until_visited(40) == set(CONTAINERS), "all three serve"

    for name, harm in harms(site).items():
        drifts_before = site.drifts(name)
        harm()
        site.until(
            lambda name=name, drifts_before=drifts_before: site.is_healed(name, drifts_before),
            f"{name} heals",
        )
    assert site.until_visited(30) == set(CONTAINERS)

    site.dns.stop()
    site.withdraw()
    site.until(lambda: len(site.resources()) == 1, "all goes but the record")
    [(kind, outcome, message)] = site.resources()
    assert (kind, outcome) == ("Address", "Degraded")
    assert message, "it says what it waits for"
    site.dns.start()
    site.until(lambda: not site.resources(), "the record goes, too")
    assert site.find_leftovers() == []
    site.stop()


@pytest.mark.timeout(400)
def test_39_all_is_killed_at_random_moments_and_nothing_is_made_twice_or_left(site: Site) -> None:
    chance = random.Random(39)

    def die_within(seconds: float) -> None:
        time.sleep(chance.uniform(0.1, seconds))
        site.kill()
        site.start()

    site.begin("apply")
    die_within(5)
    site.declare()
    site.until_visited(10)

    for name, harm in chance.sample(sorted(harms(site).items()), 3):
        drifts_before = site.drifts(name)
        harm()
        die_within(1)
        site.until(
            lambda name=name, drifts_before=drifts_before: site.is_healed(name, drifts_before),
            f"{name} heals",
        )
    assert site.until_visited(30) == set(CONTAINERS)
    assert site.docker_names() == sorted(CONTAINERS)

    site.begin("delete")
    die_within(3)
    site.withdraw()
    die_within(3)
    site.until(lambda: not site.resources(), "all goes")
    assert site.find_leftovers() == []
    site.cli.ok("replay", "--verify")
    site.stop()
