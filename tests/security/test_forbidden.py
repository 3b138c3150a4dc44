"""Forbidden requests are denied immediately; the error names the subject and the user."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.aio.client import Client

from events.envelope import encode_intake
from events.intake import Reported
from events.stored_content import COMPOSED_KINDS
from events.subjects import REPLY_HEADER
from infra.bus.streams import DEADLETTERS, INTAKE, LOG, REJECTIONS
from infra.jetstream.access import Access
from infra.jetstream.connection import api_request, connect
from infra.jetstream.denials import Denial
from infra.jetstream.errors import BusDeniedError
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.parser import Incoming
from infra.jetstream.publish import publish, publish_in_batches, publish_many
from infra.jetstream.reads import last_by_subject, last_from_leader, read_subject, stream_state
from infra.jetstream.wire import on_denial, request, subscribe
from tests.security.guarded import PATIENCE_SECONDS, Guarded, shape

FOREIGN_SUBJECTS = [
    "rec.desired.acme.Shape.foo",
    "rec.desired=other.acme.Shape.foo",
    "rec.desired=acme.other.Shape.foo",
    "rec.desired=operator.acme.Shape.foo",
    "rec.desired.other.Shape.foo",
    "rec.desired.system.ProviderConfig.default",
    "rec.result.acme.Shape.foo",
    "rec.observed.acme.Shape.foo",
    "rec.approval.acme.Shape.foo",
    "rec.approval.other.Shape.foo",
    "rec.finalizer.other.Shape.foo",
    "rec.timer.acme.Shape.foo",
    "log.acme.Shape.foo.fact",
    "rejection.acme.Shape.foo",
    "sched.acme.Shape.foo.retry",
    "fired.acme.Shape.foo",
    "state.acme.Shape.foo",
    "listing.default.Shape.x",
    "deadletter.intake.acme.1024",
    "deadletter.handled",
    "discarded",
    "$KV.reconciler.status.acme.Shape.foo",
    "_INBOX.other.x",
    "_INBOX.decider.x",
]
OUTCOMES = "log.acme.*.*.outcome.*"
TARGETS = [
    f"$JS.API.CONSUMER.MSG.NEXT.{LOG}.workers=default",
    f"$JS.API.CONSUMER.MSG.NEXT.{INTAKE}.decider-0",
    f"$JS.API.CONSUMER.MSG.NEXT.{LOG}.other",
    "discarded",
]
FOREIGN_REQUESTS = [
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.LOG_1",  # with a filter, it names the resources of all users
    "$JS.API.STREAM.INFO.REJECTIONS",
    "$JS.API.STREAM.CREATE.MINE",
    *(
        f"$JS.API.STREAM.{verb}.{stream}"
        for verb in ("UPDATE", "DELETE", "PURGE", "SNAPSHOT", "MSG.GET", "MSG.DELETE")
        for stream in (LOG, REJECTIONS)
    ),
    "$JS.API.DIRECT.GET.LOG_1",
    "$JS.API.DIRECT.GET.REJECTIONS",
    "$JS.API.DIRECT.GET.REJECTIONS.rejection.other.Shape.foo",
    "$JS.API.DIRECT.GET.LOG_1.log.other.Shape.foo.outcome.*",
    "$JS.API.DIRECT.GET.LOG_1.log.acme.Shape.foo.fact",
    "$JS.API.DIRECT.GET.LOG_1.log.system.ProviderConfig.default.outcome.*",
    "$JS.API.DIRECT.GET.KV_reconciler.$KV.reconciler.status.system.ProviderConfig.default",
    "$JS.API.CONSUMER.CREATE.DEADLETTERS",
    "$JS.API.DIRECT.GET.KV_reconciler.$KV.reconciler.status.other.Shape.foo",
    "$JS.API.CONSUMER.CREATE.LOG_1",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.acme.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.=acme=0.log.acme.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.REJECTIONS.=acme=0.rejection.acme.*.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.>",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.>",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.acme.>",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.acme.*.*.>",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.acme.*.*.fact",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.acme.*.*.action.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.*.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.other.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.acme.log.system.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.other.log.acme.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.workers=default.log.acme.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.LOG_1.=other=0.log.other.*.*.outcome.*",
    "$JS.API.CONSUMER.CREATE.REJECTIONS.acme.rejection.other.*.*",
    "$JS.API.CONSUMER.DURABLE.CREATE.LOG_1.acme",
    "$JS.API.CONSUMER.MSG.NEXT.LOG_1.other",
    "$JS.API.CONSUMER.INFO.LOG_1.other",
    "$JS.API.CONSUMER.DELETE.LOG_1.=acme=0",
    "$JS.API.CONSUMER.DELETE.LOG_1.=other=0",
    "$JS.API.CONSUMER.RESET.LOG_1.=other=0",
    "$JS.API.CONSUMER.RESET.LOG_1.other",
    "$JS.API.CONSUMER.RESET.LOG_1.workers=default",
    "$JS.API.CONSUMER.RESET.INTAKE.decider-0",
    "$JS.API.CONSUMER.UNPIN.INTAKE.decider-0",
    "$JS.API.CONSUMER.MSG.NEXT.LOG_1.workers=default",
    "$JS.API.CONSUMER.DELETE.LOG_1.workers=default",
    "$JS.API.CONSUMER.PAUSE.LOG_1.acme",
    "$JS.ACK.LOG_1.workers=default.1.1.1.1.1",
]

FORBIDDEN_TO_ROLES = {
    "decider": ["rec.desired.acme.Shape.foo", "rec.result.acme.Shape.foo", "$KV.reconciler.x"],
    "worker": ["log.acme.Shape.foo.fact", "rec.desired.acme.Shape.foo", "rec.timer.acme.Shape.foo"],
    "observer": ["rec.result.acme.Shape.foo", "log.acme.Shape.foo.fact", "$KV.reconciler.x"],
    "projector": ["rec.observed.acme.Shape.foo", "log.acme.Shape.foo.fact"],
    "operator": [
        "rec.result.acme.Shape.foo",
        "rec.desired.acme.Shape.foo",
        "rec.approval=acme.acme.Shape.foo",
        "log.acme.Shape.foo.fact",
        "rejection.acme.Shape.foo",
    ],
    "auditor": [
        "rec.desired.acme.Shape.foo",
        "deadletter.intake.acme.1024",
        "discarded",
        "$KV.reconciler.x",
    ],
    "installer": ["rec.desired.acme.Shape.foo", "log.acme.Shape.foo.fact"],
    "backup": [
        "rec.desired.acme.Shape.foo",
        "rec.approval.acme.Shape.foo",
        "log.acme.Shape.foo.fact",
        "deadletter.handled",
        "$KV.reconciler.x",
        "$JS.API.STREAM.CREATE.MINE",
        "$JS.API.STREAM.UPDATE.LOG_1",
        "$JS.API.CONSUMER.MSG.NEXT.INTAKE.decider-0",
        "$JS.ACK.INTAKE.decider-0.1.1.1.1.1",
    ],
    "restore": [
        "rejection.acme.Shape.foo",
        "deadletter.handled",
        "$KV.reconciler.x",
        *(f"$JS.API.STREAM.{verb}.INTAKE" for verb in ("DELETE", "PURGE", "MSG.DELETE")),
        "$JS.API.CONSUMER.MSG.NEXT.INTAKE.decider-0",
    ],
}
DESTRUCTIVE = [
    f"$JS.API.{verb}.{stream}"
    for verb in ("STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE")
    for stream in (LOG, REJECTIONS, DEADLETTERS)
] + [
    "$JS.API.CONSUMER.DELETE.LOG_1.workers=default",
    "$JS.API.CONSUMER.CREATE.LOG_1.workers=default.log.>",
]


@pytest.mark.parametrize("subject", FOREIGN_SUBJECTS + FOREIGN_REQUESTS)
async def test_a_service_may_not_publish_to_a_foreign_subject(
    guarded: Guarded, subject: str
) -> None:
    async with guarded.bus_as("acme") as nc:
        with pytest.raises(BusDeniedError) as denied:
            await request(nc, subject, b"{}", timeout=PATIENCE_SECONDS)
    assert repr(subject) in str(denied.value)
    assert denied.value.subject == subject
    assert guarded.pairs["acme"].public in str(denied.value)


@pytest.mark.parametrize("role", FORBIDDEN_TO_ROLES)
async def test_a_role_may_not_publish_what_only_another_role_may(
    guarded: Guarded, role: str
) -> None:
    allowed = DESTRUCTIVE[-1:] if role in ("installer", "restore") else []
    async with guarded.bus_as(role) as nc:
        for subject in [*FORBIDDEN_TO_ROLES[role], *DESTRUCTIVE]:
            if subject in allowed:
                continue
            with pytest.raises(BusDeniedError):
                await request(nc, subject, b"{}", timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "subject", [">", "rejection.>", "_INBOX.>", "_INBOX.other.>", "rec.>", "$JS.EVENT.>", "_R_.>"]
)
async def test_a_service_may_not_subscribe_to_a_foreign_subject(
    guarded: Guarded, subject: str
) -> None:
    async with guarded.bus_as("acme") as nc:
        denied: list[str] = []

        def listen(denial: Denial) -> bool:
            denied.append(denial.subject)
            return True

        with on_denial(nc, listen):
            await subscribe(nc, subject, _never)
            await request(
                nc, "$JS.API.INFO", b"", timeout=PATIENCE_SECONDS
            )  # sent after the subscription
        assert denied == [subject]


def _never(_message: object) -> None:
    raise AssertionError("no message may arrive")


@pytest.mark.parametrize("consumer", ["acme", "=acme=0"])
@pytest.mark.parametrize("target", TARGETS)
async def test_a_services_consumer_cannot_deliver_to_another_subject(
    guarded: Guarded, consumer: str, target: str
) -> None:
    """A pull request that the server itself publishes would take another user's actions."""
    config = {
        "name": consumer,
        "filter_subject": OUTCOMES,
        "deliver_subject": target,
        "headers_only": True,
        "ack_policy": "explicit",
    }
    async with guarded.bus_as("acme") as nc:
        for action in ("create", "update"):
            with pytest.raises(BusDeniedError):
                await api_request(
                    nc,
                    f"CONSUMER.CREATE.{LOG}.{consumer}.{OUTCOMES}",
                    {"stream_name": LOG, "config": config, "action": action},
                )


@pytest.mark.parametrize(
    "body",
    [
        {"seq": 1},
        {"last_by_subj": "log.other.Shape.hidden.outcome.*"},
        {"multi_last": ["log.>"], "batch": 10},
        {"batch": 10, "seq": 1, "next_by_subj": "log.>"},
    ],
)
async def test_the_body_of_a_read_request_cannot_name_another_subject(
    guarded: Guarded, body: dict[str, Any]
) -> None:
    subject = f"$JS.API.DIRECT.GET.{LOG}.log.acme.Shape.nothing.outcome.*"
    async with guarded.bus_as("acme") as nc:
        reply = await request(nc, subject, json.dumps(body).encode(), timeout=PATIENCE_SECONDS)
    assert (reply.headers or {}).get("Status") in ("404", "408")
    assert reply.data == b""


@pytest.mark.parametrize(
    "target",
    [
        "log.other.Shape.victim.fact",
        "rec.desired.other.Shape.victim",
        "rec.result.other.Shape.victim",
        "rejection.other.Shape.victim",
        "$JS.API.STREAM.PURGE.INTAKE",
        "_INBOX.other.victim",
    ],
)
async def test_the_servers_response_cannot_be_sent_to_another_client(
    guarded: Guarded, admin: Client, name: str, target: str
) -> None:
    """Within an account, a message's acknowledgement could be stored in another user's log."""
    received: list[str] = []

    def record(message: Any) -> None:
        received.append(message.subject)

    await subscribe(admin, target, record)
    await admin.flush()
    first = (await stream_state(admin, INTAKE)).first_seq
    async with guarded.bus_as("acme") as nc:
        await nc.publish(f"rec.desired=acme.acme.Shape.{name}", b"{}", reply=target)
        await nc.publish("$JS.API.STREAM.NAMES", b"", reply=target)
        await nc.flush()
        await request(nc, f"rec.desired=acme.acme.Shape.{name}", b"{}", timeout=PATIENCE_SECONDS)
    await admin.flush()
    assert received == []
    assert await last_from_leader(admin, LOG, "log.other.Shape.victim.>") is None
    assert (await stream_state(admin, INTAKE)).first_seq == first


async def test_only_the_denied_messages_in_a_batch_fail(guarded: Guarded, name: str) -> None:
    own_message = OutgoingMessage(f"rec.desired=acme.acme.Shape.{name}", b"{}")
    foreign_message = OutgoingMessage(f"rec.desired.other.Shape.{name}", b"{}")
    async with guarded.bus_as("acme") as nc:
        for store in (publish_many, publish_in_batches):
            first, denied, last = await store(nc, [own_message, foreign_message, own_message])
            assert isinstance(denied, BusDeniedError)
            assert not isinstance(first, Exception)
            assert not isinstance(last, Exception)


async def test_a_user_without_its_own_inbox_gets_a_clear_error(guarded: Guarded) -> None:

    access = Access(nkey=guarded.key("acme"), inbox_prefix="_INBOX.mistaken")
    nc = await connect(guarded.bus.url, name="mistaken", access=access)
    try:
        for _ in range(2):
            with pytest.raises(BusDeniedError, match=r"may not subscribe to '_INBOX\.mistaken"):
                await request(nc, "$JS.API.INFO", b"", timeout=PATIENCE_SECONDS)
    finally:
        await nc.close()


async def test_the_sdk_names_the_data_that_a_service_may_not_read(
    guarded: Guarded, name: str
) -> None:
    async with guarded.sdk_as("acme") as client:
        with pytest.raises(BusDeniedError):
            await client.history(f"other/Shape/{name}")
        with pytest.raises(BusDeniedError):
            await client.declare(shape("other", name))
        with pytest.raises(BusDeniedError, match="durable"):
            async with client.outcomes("acme", durable="elsewhere"):
                pass
        with pytest.raises(BusDeniedError):
            async with client.outcomes():
                pass


@pytest.mark.parametrize("kind", sorted(COMPOSED_KINDS))
async def test_a_service_cannot_declare_a_composed_kind(
    guarded: Guarded, name: str, kind: str
) -> None:
    """A set names the resources that are its parts, and shows their outputs."""
    async with guarded.bus_as("acme") as nc:
        with pytest.raises(BusDeniedError):
            await publish(nc, f"rec.desired=acme.acme.{kind}.Deployment-{name}", b"{}")


async def test_forged_results_from_an_admitted_worker_are_ignored(
    guarded: Guarded, admin: Client, name: str
) -> None:
    """Defense in depth: the aggregate also checks the messages that the server accepts."""

    async with guarded.sdk_as("acme") as client:
        await client.declare(shape("acme", name))
        await client.wait_for(f"acme/Shape/{name}", generation=1)
    now = datetime.now(UTC)
    newest_before = await last_from_leader(admin, LOG, f"log.acme.Shape.{name}.>")
    assert newest_before is not None
    forged = Reported("no-such-action", 1, now, now, "forger")
    await publish(
        admin, f"rec.result.acme.Shape.{name}", encode_intake("f1", "forger", forged, time=now)
    )
    await _wait_until_decided(admin)
    newest_after = await last_from_leader(admin, LOG, f"log.acme.Shape.{name}.>")
    assert newest_after == newest_before


async def test_a_cloudevent_about_another_resource_becomes_a_dead_letter(
    guarded: Guarded, admin: Client, name: str
) -> None:
    manifest = {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"namespace": "acme", "name": name},
        "spec": {"type": "Square", "color": "Red"},
    }
    event = {
        "specversion": "1.0",
        "id": name,
        "source": "acme",
        "type": "reconciler.desired.Declared",
        "subject": f"other/Shape/{name}",
        "data": {"manifest": manifest},
    }
    async with guarded.bus_as("acme") as nc:
        await publish(nc, f"rec.desired=acme.acme.Shape.{name}", json.dumps(event).encode())
        await _wait_until_decided(admin)
        messages = await read_subject(admin, DEADLETTERS, "deadletter.intake.acme.>", start_seq=1)
        reasons = [json.loads(message.payload)["reason"] for message in messages]
        (reason,) = [reason for reason in reasons if f"other/Shape/{name}" in reason]
        assert f"published for acme/Shape/{name}" in reason
        event |= {"subject": f"acme/Shape/{name}", "id": f"{name}-2"}
        await publish(nc, f"rec.desired=acme.acme.Shape.{name}", json.dumps(event).encode())
    async with guarded.sdk_as("acme") as client:
        assert (await client.wait_for(f"acme/Shape/{name}", generation=1)).outcome == "Converged"


async def test_a_reply_goes_only_to_an_inbox_of_the_requesting_user(
    guarded: Guarded, admin: Client, name: str
) -> None:
    manifest = {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"namespace": "acme", "name": name},
        "spec": {"type": "Square", "color": "Red"},
    }
    replies: list[Incoming] = []
    async with guarded.bus_as("acme") as acme, guarded.bus_as("other") as other_client:
        await subscribe(other_client, "_INBOX.other.>", replies.append)
        await subscribe(acme, "_INBOX.acme.>", replies.append)
        for user in ("other", "acme"):
            headers = {"Nats-Msg-Id": f"{name}-{user}", REPLY_HEADER: f"_INBOX.{user}.{name}"}
            await publish(
                acme,
                f"rec.desired=acme.acme.Shape.{name}",
                json.dumps(manifest).encode(),
                headers=headers,
            )
        await _wait_until_decided(admin)
        await request(
            other_client, "$JS.API.INFO", b"", timeout=PATIENCE_SECONDS
        )  # after all replies
        await request(acme, "$JS.API.INFO", b"", timeout=PATIENCE_SECONDS)
    received = [reply for reply in replies if reply.subject.endswith(name)]
    assert [reply.subject for reply in received] == [f"_INBOX.acme.{name}"]
    reply = json.loads(received[0].data)
    assert (reply["resource"], reply["id"]) == (f"acme/Shape/{name}", f"{name}-acme")


async def _wait_until_decided(admin: Client) -> None:
    """Wait until no message in the intake is pending."""

    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            consumers = await api_request(admin, f"CONSUMER.LIST.{INTAKE}", {})
            if not any(
                each["num_pending"] or each["num_ack_pending"] for each in consumers["consumers"]
            ):
                return
            await asyncio.sleep(0.02)


async def test_a_service_reads_whether_the_apis_of_its_configurations_respond_and_nothing_else(
    guarded: Guarded,
) -> None:
    """The permissions of "acme" name the configuration "default", those of "other" name none."""
    async with guarded.sdk_as("acme") as client:
        assert await client.silent_since("default") is None
        with pytest.raises(BusDeniedError):
            await client.silent_since("foreign")
    async with guarded.bus_as("acme") as nc:
        for what in ("fact", "outcome.Converged", "outcome.*", ">"):
            with pytest.raises(BusDeniedError):
                await last_by_subject(nc, LOG, [f"log.system.ProviderConfig.default.{what}"])
    async with guarded.sdk_as("other") as client:
        with pytest.raises(BusDeniedError):
            await client.silent_since("default")
        accepted = await client.declare(shape("other", "without-condition"))
        outcome = await client.wait_for(
            "other/Shape/without-condition", generation=accepted.generation
        )
        assert outcome.outcome == "Converged", "the recorded outcome is enough"
