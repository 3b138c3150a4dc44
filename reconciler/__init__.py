"""The reconciler: keeps what was declared and what exists the same, from an event log.

The loop, in the order in which one declaration goes through it:

A service publishes a *declaration* on the bus: it is a message of the *intake* (`events.intake`),
sent by the SDK (`sdk`) or by hand (docs/how-to/publish-and-subscribe.md).

The *decider* (`roles.decider`) takes the intake in batches. For each *resource* it loads the
*state*, folded from the log by `evolve` (`roles.decider.repository`, `resource.evolve`), and asks
the pure `decide(state, commands, context)` (`resource.decide`) for the *events* that follow. All of
a batch are appended at once, each resource's by compare-and-set: one *turn*, one writer.

Among the events may be a decided *action*, with its idempotency key. The *worker* (`roles.worker`)
gets it from the log, passes the gate of its API (`roles.gate`), and calls the *provider*
(`provider`, `infra.providers`). What came of it is a result in the intake, and the loop goes on:
the decider records the end of the attempt, and what follows from the state (`resource.next_step`).

The *observer* (`roles.observer`) lists every API at an interval, compares the listing with what the
log knows (`roles.observer.listing`), and puts what differs into the intake. Only a complete
listing, or a read that the provider declares authoritative, proves that something is gone.

A *timer* ends a wait. It is a hint: the *sweeper* (`roles.sweeper`) finds what was forgotten.

How a generation stands is an *outcome*: an event too, which the server copies to a stream that
others subscribe to. The *projector* (`roles.projector`) folds the log into *rows* for reading.

What the roles need from a bus is in `ports`; `infra.bus` implements it on NATS JetStream, and
`tests.simulation` on one thread with a clock of its own. `wiring` puts a process together: only it
imports `infra`. `provider.kind` says what a kind is, `cli` is for people, `failpoints` for tests.
"""
