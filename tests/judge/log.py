"""Rules about the log: versions, generations, secrets, and the decision of every message."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, cast

from msgspec.structs import replace

from events.envelope import encode_log
from events.intake import Declared, Withdrawn
from events.log import ResourceEvent, SpecDeclared, SpecWithdrawn
from events.manifest import Declaration, Fields, InvalidManifestError, split_manifest
from events.names import ResourceKey
from tests.judge.history import History, Message
from tests.judge.ledger import Ledger
from tests.judge.rule import Breach, JudgedEvent, on, rule

_NO_GENERATION_REASONS = ("Unchanged", "Superseded", "Duplicate")
_MAX_WAIT_SECONDS = 10.0

# --- each event


@on()
def versions(context: JudgedEvent[ResourceEvent]) -> Iterator[str]:
    """The versions of a resource's events have no gap and no duplicate (invariant 5)."""
    if context.event.resourceversion != context.resource.version + 1:
        yield f"it follows version {context.resource.version}"


@on()
def secrets(context: JudgedEvent[ResourceEvent]) -> Iterator[str]:
    """The log contains no secret's value, whatever an API returned (invariant 12).

    This includes values in Base64 and in hexadecimal digits.
    """
    values = context.ledger.history.secret_values
    stored = encode_log(context.event) if values else b""
    for value in map(str.encode, values):
        encoded = (value, base64.b64encode(value).rstrip(b"="), value.hex().encode())
        if any(each in stored for each in encoded):
            yield "a secret is in the log"


@on(SpecDeclared, SpecWithdrawn)
def generations(context: JudgedEvent[SpecDeclared | SpecWithdrawn]) -> Iterator[str]:
    """One message creates at most one generation, even if it is redelivered (invariant 4).

    It may be decided again at its first position, after a message that it has overtaken.
    """
    first = context.ledger.generations.get(
        (context.event.key, context.event.actor, context.event.causationid)
    )
    if first not in (None, context.data.generation):
        yield f"message {context.event.causationid} already created generation {first}"


@on(SpecDeclared, SpecWithdrawn, needs=("replies",))
def repetitions(context: JudgedEvent[SpecDeclared | SpecWithdrawn]) -> Iterator[str]:
    """A message whose reply reported no generation creates none when resent (invariant 4).

    Exception: it is handled before the redelivery of the message that it had overtaken. The newest
    generation then comes from an older message, and was stored after the reply.
    """
    for inbox, reply in context.ledger.history.replies or ():
        is_its_own = (
            inbox == f"_INBOX.{context.event.causationid}"
            and reply.reason in _NO_GENERATION_REASONS
        )
        is_older = context.resource.position < reply.position
        has_overtaken = is_older and reply.generation < context.resource.generation
        if is_its_own and reply.position < context.event.causationposition and not has_overtaken:
            yield f"message {context.event.causationid} was {reply.reason} before"


# --- each message


@rule("end", "messages")
def undecided_message(ledger: Ledger) -> Iterator[Breach]:
    """Every message is decided, refused or a dead letter, or repeats one (invariant 11).

    Where replies are recorded, a reply is also a decision: of two messages that were handled out
    of order, one may repeat the other. `outdated_declaration` and `repetitions` judge those.
    """
    history, first = ledger.history, _first_positions(ledger)
    handled = history.dead_letters | history.refused
    handled |= {reply.position for _, reply in history.replies or ()}
    for message in (history.messages or {}).values():
        if message.position in handled:
            continue
        if message.key is None:
            yield f"message {message.position}", "it is unreadable, but not a dead letter"
        elif message.key not in history.damaged and isinstance(message.data, Declared | Withdrawn):
            is_decided = (message.key, message.message_id) in ledger.causes
            position = first[message.key, message.message_id]
            if not is_decided and not _repeats(ledger, message.key, message.data, position):
                yield (
                    message.key,
                    f"{type(message.data).__name__} {message.message_id!r} at {message.position} "
                    "led to no event, no rejection and no dead letter",
                )


@rule("end", "messages")
def lost_message(ledger: Ledger) -> Iterator[Breach]:
    """A message that the bus acknowledged is in the intake or in the log (invariant 11)."""
    messages = (ledger.history.messages or {}).values()
    stored = ledger.causes | {(each.key, each.message_id) for each in messages}
    for message in ledger.history.acknowledged:
        if message not in stored:
            yield message.key, f"{message.message_id!r} was acknowledged, but is lost"


@rule("end", "messages")
def outdated_declaration(ledger: Ledger) -> Iterator[Breach]:
    """The log has the newest declaration or withdrawal of a resource (invariants 4, 11)."""
    history, expected = ledger.history, _newest(ledger)
    for key in expected.keys() | ledger.resources.keys():
        resource, declaration = ledger.resource(key), expected.get(key)
        if key in history.damaged:
            continue
        if resource.is_declared != (declaration is not None):
            text = f"is_declared is {resource.is_declared}, but should be {declaration is not None}"
            yield key, text
        elif declaration is not None and not _is_same(history, key, resource.spec, declaration):
            yield key, f"{resource.spec} was decided, but the newest declaration differs"


def undecided_for_long(history: History, now: float) -> Iterator[Breach]:
    """Yield the messages that wait although only other resources have problems (invariant 14).

    This is not a rule about a history at rest, in which everything has been decided.
    """
    answered_inboxes = {inbox for inbox, _ in history.replies or ()}
    for message in (history.messages or {}).values():
        waited = now - message.stored_at
        is_usable = isinstance(message.data, Declared | Withdrawn)
        if waited > _MAX_WAIT_SECONDS and is_usable and message.reply_to not in answered_inboxes:
            yield (
                f"message {message.position}",
                f"undecided for {waited:.0f} s while other resources wait",
            )


def _first_positions(ledger: Ledger) -> dict[tuple[ResourceKey, str], int]:
    """Return the position of each message: of its generation, or else of its first copy.

    A later copy under the same id declares nothing new.
    """
    first: dict[tuple[ResourceKey, str], int] = {}
    for message in (ledger.history.messages or {}).values():
        if message.key is not None:
            first.setdefault((message.key, message.message_id), message.position)
    return first | {
        (event.key, event.causationid): event.causationposition
        for _, _, event in ledger.history.log
        if isinstance(event.data, SpecDeclared | SpecWithdrawn)
    }


def _newest(ledger: Ledger) -> dict[ResourceKey, Declaration | None]:
    """Return the newest declaration of each resource; None for one that was withdrawn."""
    history, first = ledger.history, _first_positions(ledger)
    newest: dict[ResourceKey, tuple[int, Declaration | None]] = {}
    for message in (history.messages or {}).values():
        if message.key is None or not isinstance(message.data, Declared | Withdrawn):
            continue
        position = first[message.key, message.message_id]
        if position >= newest.get(message.key, (0, None))[0] and not _is_refused(history, message):
            try:
                data = message.data
                declaration = (
                    None if isinstance(data, Withdrawn) else _checked(history, message.key, data)
                )
            except InvalidManifestError:
                continue
            newest[message.key] = position, declaration
    return {key: each for key, (_, each) in newest.items()}


def _is_refused(history: History, message: Message) -> bool:
    """Return whether a message was refused; a simulated world determines which had to be."""
    if history.truth is None:
        return message.position in history.refused | history.dead_letters
    return history.truth.is_rightly_refused(message)


def _checked(history: History, key: ResourceKey, data: Declared | Withdrawn) -> Declaration | None:
    """Return what a message declares, None for a withdrawal; raises ``InvalidManifestError``."""
    if isinstance(data, Withdrawn):
        return None
    declaration = split_manifest(data.manifest)
    if history.truth is None:
        return declaration
    return replace(declaration, fields=history.truth.checked(key.kind, declaration.fields))


def _is_same(
    history: History, key: ResourceKey, spec: SpecDeclared | None, expected: Declaration
) -> bool:
    """Return whether a spec is as declared; only a simulated world provides a kind's defaults."""
    if spec is None or (spec.policy, spec.labels) != (expected.policy, expected.labels):
        return False
    if history.truth is not None:
        return spec.fields == expected.fields
    return _includes(expected.fields, spec.fields)


def _includes(declared: Any, fields: Any) -> bool:
    """Return whether a value includes the declared one; a kind may complete any mapping."""
    if isinstance(declared, list) and isinstance(fields, list):
        items, found = cast("list[Any]", declared), cast("list[Any]", fields)
        return len(items) == len(found) and all(map(_includes, items, found))
    if not isinstance(declared, dict) or not isinstance(fields, dict):
        return declared == fields
    actual_fields = cast("Fields", fields)
    return all(
        _includes(value, actual_fields.get(name))
        for name, value in cast("Fields", declared).items()
    )


def _repeats(ledger: Ledger, key: ResourceKey, data: Declared | Withdrawn, position: int) -> bool:
    """Return whether a message repeats the declaration at its position, which is not recorded."""
    previous_declaration: SpecDeclared | None = None
    for _, _, event in ledger.history.log:
        if event.key == key and event.causationposition <= position:
            if isinstance(event.data, SpecDeclared):
                previous_declaration = event.data
            elif isinstance(event.data, SpecWithdrawn):
                previous_declaration = None
    try:
        expected = _checked(ledger.history, key, data)
    except InvalidManifestError:
        return False
    if expected is None:
        return previous_declaration is None
    return _is_same(ledger.history, key, previous_declaration, expected)
