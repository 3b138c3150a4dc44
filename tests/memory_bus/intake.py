"""The intake: partitions of resources, each normally read by one reader at a time."""

from __future__ import annotations

import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from events.envelope import encode_intake
from events.names import InvalidNameError, ResourceKey
from events.subjects import intake as intake_subject
from events.subjects import parse_stored_intake
from infra.bus import streams
from infra.bus.intake import IntakeNotStoredError
from infra.jetstream.errors import StreamFullError
from reconciler.ports import IntakeDelivery, IntakeMessageOut
from tests.memory_bus.capacity import Capacity
from tests.memory_bus.clock import Clock, date_of
from tests.memory_bus.deliveries import Consumer
from tests.memory_bus.network import Network
from tests.memory_bus.reading import Deliver, pull

PARTITIONS = 3
ACK_WAIT_SECONDS = 10.0
BATCH_SIZES = (1, 2, 5, 20)
"""Numbers of messages that a reader requests at a time, drawn at random to vary the batches."""

_PIN_SECONDS = 3.0
_NO_PARTITION = PARTITIONS
_REQUEST_SECONDS = 2.5


class StoredIntake:
    """A message of the intake."""

    __slots__ = ("message_id", "payload", "position", "reply_to", "stored_at", "subject")

    def __init__(
        self,
        position: int,
        subject: str,
        payload: bytes,
        message_id: str,
        reply_to: str | None,
        stored_at: float,
    ) -> None:
        self.position = position
        self.subject = subject
        self.payload = payload
        self.message_id = message_id
        self.reply_to = reply_to
        self.stored_at = stored_at


class _Request:
    """A reader's open request for messages."""

    __slots__ = ("deliver", "expires", "max_count", "reader")

    def __init__(
        self, reader: str, max_count: int, expires: float, deliver: Deliver[IntakeDelivery]
    ) -> None:
        self.reader = reader
        self.max_count = max_count
        self.expires = expires
        self.deliver = deliver


class IntakeStream:
    """The intake as the server stores it: messages, consumers and their pins."""

    def __init__(
        self,
        network: Network,
        time: Callable[[], float],
        seed: str,
        *,
        max_ack_pending: int = 2_000,
    ) -> None:
        self._network = network
        self.capacity = Capacity("INTAKE")
        self._time = time
        self._random = random.Random(seed)
        self.messages: list[StoredIntake] = []
        self.max_ack_pending = max_ack_pending
        self._consumers = [
            Consumer(ACK_WAIT_SECONDS, max_ack_pending=max_ack_pending, max_deliver=_max_deliver())
            for _ in range(PARTITIONS + 1)
        ]
        self._pins: dict[int, tuple[str, float]] = {}
        self._times_pinned: Counter[int] = Counter()
        self._requests: list[_Request] = []
        self._wake_at = 0.0

    # --- storing

    @property
    def last_position(self) -> int:
        """The position of the newest message."""
        return len(self.messages)

    def store(
        self, subject: str, payload: bytes, message_id: str = "", reply_to: str | None = None
    ) -> int:
        """Store a message published as ``rec.…`` and return its position.

        Raises ``StreamFullError``.
        """
        now = self._time()
        self.capacity.reserve()
        position = len(self.messages) + 1
        stored, partition = _partitioned(subject)
        shown_id = message_id or f"intake-{position}"
        self.messages.append(StoredIntake(position, stored, payload, shown_id, reply_to, now))
        self._consumers[partition].add(position)
        self.serve()
        return position

    def was_sole_reader(self, delivery: IntakeDelivery) -> bool:
        """Return whether no other reader has received the message's partition since then."""
        return self._times_pinned[_partition_of(delivery.subject)] == delivery.receipt

    def newer(self, delivery: IntakeDelivery) -> list[IntakeDelivery]:
        """Return the newer messages on a message's subject, without delivering them."""
        return [
            IntakeDelivery(
                each.position,
                each.subject,
                each.payload,
                each.message_id,
                None,
                1,
                None,
                stored_at=date_of(each.stored_at),
            )
            for each in self.messages[delivery.position :]
            if each.subject == delivery.subject
        ]

    def declared(self, key: ResourceKey) -> list[IntakeDelivery]:
        """Return all declarations of a resource, without delivering them."""
        return [
            IntakeDelivery(
                each.position,
                each.subject,
                each.payload,
                each.message_id,
                None,
                1,
                None,
                stored_at=date_of(each.stored_at),
            )
            for each in self.messages
            if each.subject.split(".", 2)[-1] == f"desired.{key.tokens}"
        ]

    # --- delivering

    @property
    def is_idle(self) -> bool:
        """Whether every message was decided and acknowledged."""
        return all(consumer.is_idle for consumer in self._consumers)

    def request(
        self, reader: str, max_count: int, deliver: Deliver[IntakeDelivery], *, waits: bool = True
    ) -> None:
        """Deliver messages to a reader as soon as there are some, or now if it does not wait."""
        now = self._time()
        for partition, (pinned, _) in list(self._pins.items()):
            if pinned == reader:
                self._pins[partition] = (reader, now)
        request = _Request(reader, max_count, now + _REQUEST_SECONDS, deliver)
        if waits:
            self._requests.append(request)
            self.serve()
        else:
            deliver([] if self._network.is_away else self._collect(request, now))

    def unpin(self, reader: str = "") -> None:
        """Release the partitions of one reader, or of all."""
        self._pins = {
            partition: pin for partition, pin in self._pins.items() if reader and pin[0] != reader
        }
        if not reader:
            self._random.shuffle(self._requests)
        self.serve()

    def forget_requests(self, reader: str) -> None:
        """Drop the requests of a reader whose connection is closed."""
        self._requests = [each for each in self._requests if each.reader != reader]

    def serve(self) -> None:
        """Deliver the messages that can be delivered now."""
        if self._network.is_away:
            return
        now = self._time()
        self._requests = [each for each in self._requests if each.expires > now]
        for request in list(self._requests):
            batch = self._collect(request, now)
            if batch:
                self._requests.remove(request)
                request.deliver(batch)
        self._wake_later(now)

    def _collect(self, request: _Request, now: float) -> list[IntakeDelivery]:
        batch: list[IntakeDelivery] = []
        for partition, consumer in enumerate(self._consumers):
            if len(batch) < request.max_count and self._may_read(request.reader, partition, now):
                handed_out = consumer.deliver(request.max_count - len(batch), now)
                if handed_out:
                    if self._pins.get(partition, ("",))[0] != request.reader:
                        self._times_pinned[partition] += 1
                    self._pins[partition] = (request.reader, now)
                batch += [self._delivery(*each) for each in handed_out]
        return batch

    def _may_read(self, reader: str, partition: int, now: float) -> bool:
        pin = self._pins.get(partition)
        return pin is None or pin[0] == reader or pin[1] + _PIN_SECONDS <= now

    def _delivery(self, position: int, delivered: int) -> IntakeDelivery:
        stored = self.messages[position - 1]
        return IntakeDelivery(
            position=position,
            subject=stored.subject,
            payload=stored.payload,
            message_id=stored.message_id,
            reply_to=_inbox(stored.reply_to),
            delivered=delivered,
            receipt=self._times_pinned[_partition_of(stored.subject)],
            stored_at=date_of(stored.stored_at),
        )

    def _wake_later(self, now: float) -> None:
        """Serve again when the next redelivery is due, or a pin ends."""
        if not self._requests or self._wake_at > now:
            return
        times = [due for each in self._consumers if (due := each.next_redelivery()) is not None]
        waiting = any(each.can_deliver(now) for each in self._consumers)
        times += [pinned_at + _PIN_SECONDS for _, pinned_at in self._pins.values() if waiting]
        if times:
            self._wake_at = max(min(times), now + 0.05)
            self._network.call_later(self._wake_at - now, self.serve)

    # --- acknowledging

    def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Stop delivering these messages."""
        for each in deliveries:
            self._consumer(each).ack([each.position])
        self.serve()  # a slot may have become free

    def extend(self, deliveries: Sequence[IntakeDelivery]) -> None:
        """Restart the leases of these messages."""
        for each in deliveries:
            self._consumer(each).extend([each.position], self._time())

    def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        """Redeliver these messages after a delay."""
        for each in deliveries:
            self._consumer(each).redeliver_at([each.position], self._time() + seconds)
        self.serve()

    def deliver_again(self, count: int) -> None:
        """Redeliver the newest messages of each partition."""
        for consumer in self._consumers:
            consumer.redeliver_acknowledged(count, self._time())
        self.serve()

    def _consumer(self, delivery: IntakeDelivery) -> Consumer:
        return self._consumers[_partition_of(delivery.subject)]


def _inbox(reply_to: str | None) -> str | None:
    """Return a reply subject if a reply may be sent to it; None for any other subject."""
    is_inbox = reply_to is not None and reply_to.startswith("_INBOX.")
    return reply_to if is_inbox and not set(reply_to or "") & set("*> ") else None


def _max_deliver() -> int:
    """Return the maximum number of deliveries that the product configures."""
    config = streams._decider_consumer("decider-0", "in.0.>")  # pyright: ignore[reportPrivateUsage]
    return int(config.get("max_deliver", -1))


def partition_of(key: ResourceKey) -> int:
    """Return the partition of a resource's messages. The server hashes differently."""
    return _partitioned(intake_subject("desired", key))[1]


def _partitioned(subject: str) -> tuple[str, int]:
    """Return the subject under which the stream stores a message, and its partition."""
    parts = subject.split(".")
    if len(parts) != 5:
        return subject, _NO_PARTITION
    partition = zlib.crc32(".".join(parts[2:]).encode()) % PARTITIONS
    return f"in.{partition}." + ".".join(parts[1:]), partition


def _partition_of(stored_subject: str) -> int:
    if not stored_subject.startswith("in."):
        return _NO_PARTITION
    return int(stored_subject.split(".")[1])


class MemoryIntakeReader:
    """Implements ``reconciler.ports.IntakeReader`` for one process."""

    def __init__(
        self,
        stream: IntakeStream,
        network: Network,
        name: str,
        seed: str,
        *,
        batch_sizes: Sequence[int] = BATCH_SIZES,
    ) -> None:
        self._batch_sizes = batch_sizes
        self._stream = stream
        self._network = network
        self._name = name
        self._random = random.Random(seed)

    @property
    def slots(self) -> int:
        return self._stream.max_ack_pending

    async def next_batch(self, max_seconds: float = math.inf) -> Sequence[IntakeDelivery]:
        if max_seconds <= 0:
            return await pull(self._network, "pull", self._request_available, 0.0)
        while True:
            batch = await pull(self._network, "pull", self._request, _REQUEST_SECONDS)
            max_seconds -= _REQUEST_SECONDS
            if batch or max_seconds <= 0:
                return batch

    def _request_available(self, deliver: Deliver[IntakeDelivery]) -> None:
        max_count = self._random.choice(self._batch_sizes)
        self._stream.request(self._name, max_count, deliver, waits=False)

    async def extend(self, deliveries: Sequence[IntakeDelivery]) -> None:
        if deliveries:
            self._network.send("ack", lambda: self._stream.extend(deliveries))

    def _request(self, deliver: Deliver[IntakeDelivery]) -> None:
        self._stream.request(self._name, self._random.choice(self._batch_sizes), deliver)

    async def ack(self, deliveries: Sequence[IntakeDelivery]) -> None:
        if deliveries:
            self._network.send("ack", lambda: self._stream.ack(deliveries))

    async def retry_later(self, deliveries: Sequence[IntakeDelivery], seconds: float) -> None:
        if deliveries:
            self._network.send("later", lambda: self._stream.retry_later(deliveries, seconds))

    async def was_sole_reader(self, deliveries: Sequence[IntakeDelivery]) -> bool:
        stream = self._stream
        return await self._network.ask("read", lambda: all(map(stream.was_sole_reader, deliveries)))

    async def newer_declarations(
        self, deliveries: Sequence[IntakeDelivery]
    ) -> Sequence[Sequence[IntakeDelivery]]:
        stream = self._stream
        return await self._network.ask("read", lambda: [stream.newer(each) for each in deliveries])

    async def declarations_of(
        self, known: Mapping[ResourceKey, Collection[int]]
    ) -> Mapping[ResourceKey, Sequence[IntakeDelivery]]:
        stream = self._stream
        found = await self._network.ask(
            "read", lambda: {key: stream.declared(key) for key in known}
        )
        return {
            key: messages
            for key, messages in found.items()
            if any(each.position not in known[key] for each in messages)
        }

    async def close(self) -> None:
        self._stream.unpin(self._name)


class MemoryIntakeWriter:
    """Implements ``reconciler.ports.IntakeWriter`` for one process."""

    def __init__(self, stream: IntakeStream, network: Network, source: str, clock: Clock) -> None:
        self._stream = stream
        self._network = network
        self._source = source
        self._clock = clock

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        if messages:
            outgoing = [self._outgoing(each) for each in messages]
            await self._network.ask("publish", lambda: self._store(outgoing))

    def _outgoing(self, message: IntakeMessageOut) -> tuple[str, bytes, str]:
        payload = encode_intake(
            message.message_id, self._source, message.data, time=self._clock.now()
        )
        return intake_subject(message.what, message.key), payload, message.message_id

    def _store(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        """Store the messages that fit, as the real writer does."""
        failures: dict[int, StreamFullError] = {}
        for index, (subject, payload, message_id) in enumerate(messages):
            try:
                self._stream.store(subject, payload, message_id)
            except StreamFullError as error:
                failures[index] = error
        if failures:
            first = next(iter(failures.values()))
            raise IntakeNotStoredError(first, list(failures)) from first

    async def last_position(self) -> int:
        return await self._network.ask("position", lambda: self._stream.last_position)


def is_usable(subject: str) -> bool:
    """Return whether a stored subject names a resource."""
    try:
        parse_stored_intake(subject)
    except (ValueError, InvalidNameError):
        return False
    return True
