"""Keeps external systems in the declared state, and records all decisions in one event log.

How the loop processes one declaration, step by step:

A service publishes a *declaration* on the bus. It is a message in the *intake* (`events.intake`),
sent with the SDK (`sdk`) or any NATS client (docs/how-to/publish-and-subscribe.md).

The *decider* (`roles.decider`) pulls the intake in batches. For each *resource* it loads the
*state*, which `evolve` folds from the log (`roles.decider.repository`, `resource.evolve`). It then
calls the pure function `decide(state, commands, context)` (`resource.decide`), which returns
*events*. The decider appends the events of all resources in a batch together. Each resource is
written with one compare-and-set, so it has a single writer.

An event can contain an *action*, with its idempotency key. The *worker* (`roles.worker`) reads it
from the log, passes the gate of its API (`roles.gate`), and calls the *provider* (`provider`,
`infra.providers`). It reports the result to the intake. The decider records the end of the attempt,
and derives the next step from the state (`resource.next_step`).

The *observer* (`roles.observer`) periodically lists the objects of every API, compares the listing
with the read models (`roles.observer.listing`), and reports the differences. Only a complete
listing, or a read that the provider declares authoritative, proves that an object is missing.

A *timer* ends a wait. Timers are only hints: the *sweeper* (`roles.sweeper`) finds overdue
resources without them.

The public state of a resource is its *outcome*. It is an event too, and other services subscribe to
it. The *projector* (`roles.projector`) folds the log into *rows* for queries.

`ports` declares what the roles need from a bus. `infra.bus` implements it on NATS JetStream, and
`tests.simulation` in one thread with a virtual clock. `wiring` assembles a process, and is the only
module here that imports `infra`, apart from `sdk` and `cli`. `provider.kind` defines what a kind
is, `cli` contains the commands, and `failpoints` names the steps at which tests inject faults.
"""
