"""A read model of your own, with the `eventsourcing` library: the failed calls of each resource.

python examples/failure_counts.py failures.db

Each count is stored in one transaction with the position of its event. The next run continues from
there and counts nothing twice.
"""

import os
import sys
from typing import Any

from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import EventSourcingError
from eventsourcing.persistence import Tracking
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.sqlite import SQLiteTrackingRecorder

from reconciler.sdk.history import ResourceLog

NATS_URL = os.environ.get("RECONCILER_NATS_URL") or sys.exit(
    "RECONCILER_NATS_URL is not set; `./run reconciler config view` shows the URL of `./run up`"
)
TIMEOUT_SECONDS = 600


class FailureCounts(SQLiteTrackingRecorder):
    """The counts, next to the library's table of positions."""

    def construct_create_table_statements(self) -> list[str]:
        return [
            *super().construct_create_table_statements(),
            "CREATE TABLE IF NOT EXISTS failures (resource TEXT PRIMARY KEY, count INTEGER)",
        ]

    def count(self, resource: str, tracking: Tracking) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(
                "INSERT INTO failures VALUES (?, 1) "
                "ON CONFLICT (resource) DO UPDATE SET count = count + 1",
                (resource,),
            )

    def all(self) -> list[tuple[str, int]]:
        with self.datastore.transaction(commit=False) as cursor:
            cursor.execute("SELECT resource, count FROM failures ORDER BY resource")
            return [(row["resource"], row["count"]) for row in cursor.fetchall()]


class CountFailures(Projection[FailureCounts]):
    """Processes every event of the log in order."""

    @singledispatchmethod
    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        if domain_event.event.type == "reconciler.resource.ActionFailed":
            self.view.count(domain_event.originator_id, tracking)
        else:
            self.view.insert_tracking(tracking)


def main(file: str) -> None:
    env = {
        "NATS_URL": NATS_URL,
        "NATS_TIMEOUT_SECONDS": "5",
        "COUNTFAILURES_PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "COUNTFAILURES_SQLITE_DBNAME": file,
    }
    with ProjectionRunner(
        application_class=ResourceLog,
        projection_class=CountFailures,
        view_class=FailureCounts,
        env=env,
    ) as runner:
        end = runner.app.recorder.max_notification_id()
        runner.wait(end, timeout=TIMEOUT_SECONDS)
        for resource, count in runner.view.all():
            print(f"{resource}: {count} calls failed")
        print(f"as of position {end or 0} of the log")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/failure_counts.py FILE.db")
    try:
        main(sys.argv[1])
    except EventSourcingError as error:
        sys.exit(
            f"{error} (start a server with `./run up`, or set RECONCILER_NATS_URL to another one)"
        )
