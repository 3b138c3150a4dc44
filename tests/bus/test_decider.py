"""A decider on the real log: what it guesses without reading is never written when it is wrong."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from events.envelope import encode_intake
from events.external import ExternalObject
from events.intake import Answer, Declared, IntakeData, Reported, TimerFired, Withdrawn
from events.log import Action, ActionDecided, SpecDeclared, SpecWithdrawn
from events.manifest import Manifest, Metadata, ProviderConfigSpec
from events.names import ShapeKey
from events.subjects import Intake
from infra.bus.shape_log import JetStreamShapeLog
from reconciler.kinds import installed_kinds
from reconciler.ports import DeadLetter, IntakeDelivery, Rejection, TimerRequest
from reconciler.services.configurations import Configurations
from reconciler.services.decider import Decider
from tests.bus.histories import new_key


class Bus:
    """The decider's other ends: nothing is read from it, and what it is told is kept."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.acknowledged = 0
        self.declared: list[IntakeDelivery] = []
        self.looks = 0

    async def next_batch(self) -> Sequence[IntakeDelivery]:
        return []

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        self.acknowledged += len(deliveries)

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        assert not deliveries

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        return [[] for _ in deliveries]

    async def declarations_of(self, keys: Sequence[ShapeKey]) -> Sequence[Sequence[IntakeDelivery]]:
        self.looks += 1
        return [[each for each in self.declared if key.tokens in each.subject] for key in keys]

    async def close(self) -> None: ...

    async def set_timers(self, timers: Sequence[TimerRequest]) -> None: ...

    async def answer(self, answers: Sequence[tuple[str, Answer]]) -> None:
        self.answers += [answer for _subject, answer in answers]

    async def reject(self, rejections: Sequence[Rejection]) -> None: ...

    async def bury(self, letters: Sequence[DeadLetter]) -> None: ...


def decider(
    log: JetStreamShapeLog, bus: Bus, configurations: Configurations | None = None
) -> Decider:
    return Decider(
        reader=bus,
        log=log,
        sink=bus,
        kinds=installed_kinds(),
        configurations=Configurations() if configurations is None else configurations,
    )


def declaration(
    key: ShapeKey, position: int, color: str, *, expected: int | None = None
) -> IntakeDelivery:
    spec: dict[str, Any] = {"type": "Square", "color": color}
    manifest = Manifest("shapes/v1", key.kind, Metadata(key.name, key.namespace), spec)
    return delivery("desired", key, position, Declared(manifest, expected))


def delivery(what: Intake, key: ShapeKey, position: int, data: IntakeData) -> IntakeDelivery:
    payload = encode_intake(f"m{position}", "test", data, time=datetime.now(UTC))
    subject = f"in.0.{what}.{key.tokens}"
    return IntakeDelivery(position, subject, payload, f"m{position}", "_INBOX.x", 1, None)


async def test_a_new_shape_is_declared_without_a_read(log: JetStreamShapeLog) -> None:
    key, bus = new_key(), Bus()
    await decider(log, bus).handle([declaration(key, 1, "Red")])
    assert [(answer.reason, answer.generation) for answer in bus.answers] == [("Accepted", 1)]
    assert bus.acknowledged == 1


async def test_a_shape_that_is_there_already_gets_its_next_generation(
    log: JetStreamShapeLog,
) -> None:
    key, bus = new_key(), Bus()
    await decider(log, bus).handle([declaration(key, 1, "Red")])
    await decider(log, bus).handle([declaration(key, 2, "Blue")])
    assert [(answer.reason, answer.generation) for answer in bus.answers] == [
        ("Accepted", 1),
        ("Accepted", 2),
    ]
    history = [stored.event for stored in await log.history(key)]
    assert [event.shapeversion for event in history] == list(range(1, len(history) + 1))
    colors = [each.data.fields["color"] for each in history if isinstance(each.data, SpecDeclared)]
    assert colors == ["Red", "Blue"]


def sent_again(first: IntakeDelivery, position: int) -> IntakeDelivery:
    return replace(first, position=position, message_id=f"fresh-{position}")


async def test_what_changed_nothing_reverts_nothing_when_it_is_sent_again(
    log: JetStreamShapeLog,
) -> None:
    key, bus = new_key(), Bus()
    withdrawn = delivery("desired", key, 1, Withdrawn())
    told = [withdrawn, *(declaration(key, at, "Red") for at in (2, 3))]
    told.append(declaration(key, 4, "Blue"))
    bus.declared = [*told, sent_again(withdrawn, 5), sent_again(told[2], 6)]
    for each in bus.declared:
        await decider(log, bus).handle([each])
    reasons = ["Unchanged", "Accepted", "Unchanged", "Accepted", "Duplicate", "Duplicate"]
    assert [answer.reason for answer in bus.answers] == reasons
    assert bus.looks == 2, "only for what may be old"
    history = [stored.event.data for stored in await log.history(key)]
    declared = [each for each in history if isinstance(each, SpecDeclared | SpecWithdrawn)]
    assert [each.generation for each in declared] == [1, 2]


async def test_a_batch_of_old_and_new_declarations_ends_with_the_newest(
    log: JetStreamShapeLog,
) -> None:
    """All of a new shape at once, which is decided on a guess if nothing speaks against it."""
    key, bus = new_key(), Bus()
    told = [declaration(key, at, color) for at, color in enumerate(("Red", "Red", "Blue"), 1)]
    bus.declared = [*told, sent_again(told[1], 4)]
    await decider(log, bus).handle(bus.declared)
    assert [answer.reason for answer in bus.answers] == [
        "Accepted",
        "Unchanged",
        "Accepted",
        "Duplicate",
    ]


async def test_what_is_refused_is_refused_by_what_there_is(log: JetStreamShapeLog) -> None:
    key, bus = new_key(), Bus()
    await decider(log, bus).handle([declaration(key, 1, "Red")])
    await decider(log, bus).handle([declaration(key, 2, "Pink")])
    await decider(log, bus).handle([declaration(key, 3, "Blue", expected=1)])
    await decider(log, bus).handle([declaration(key, 3, "Blue", expected=1)])
    assert [(answer.reason, answer.generation) for answer in bus.answers] == [
        ("Accepted", 1),
        ("Invalid", 1),
        ("Accepted", 2),
        ("Duplicate", 2),
    ]


async def test_a_decider_with_old_knowledge_takes_no_news_for_old(log: JetStreamShapeLog) -> None:
    key, ours, others = new_key(), Bus(), Bus()
    stale = decider(log, ours)
    await stale.handle([declaration(key, 1, "Red")])
    await decider(log, others).handle([declaration(key, 2, "Blue")])
    await stale.handle([declaration(key, 3, "Red")])  # as it was, by what this one still knows
    assert [(answer.reason, answer.generation) for answer in ours.answers] == [
        ("Accepted", 1),
        ("Accepted", 3),
    ]


async def test_a_decider_with_old_knowledge_is_woken_to_what_there_is_now(
    log: JetStreamShapeLog,
) -> None:
    key, configurations = new_key(), Configurations()
    configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://127.0.0.1:1")
    stale, other = decider(log, Bus(), configurations), decider(log, Bus())
    await stale.handle([declaration(key, 1, "Red")])
    [create] = await actions_of(log, key)
    made = ExternalObject(key.name, create.fields, "u1", "1", create.labels)
    now = datetime.now(UTC)
    result = Reported(create.action_id, 1, now, now, "w", object=made)
    await other.handle([delivery("result", key, 2, result)])
    await other.handle([declaration(key, 3, "Blue")])  # held: this one knows no configuration
    await stale.handle([delivery("timer", key, 4, TimerFired("ConfigChanged"))])
    assert [each.operation for each in await actions_of(log, key)] == ["Create", "Update"]


async def actions_of(log: JetStreamShapeLog, key: ShapeKey) -> list[Action]:
    decided = [stored.event.data for stored in await log.history(key)]
    return [each.action for each in decided if isinstance(each, ActionDecided)]
