"""The aggregate, pure: no clock, no randomness, no I/O.

In reading order:

`state` (what is known of one resource), `turn` (what goes into a decision, and comes out of it),
`decide` (the story, top to bottom), `rules` (their results are recorded in the events), `evolve`
(every event folded), then what each kind of command adds (`declaration`, `observation`, `result`,
`holds`), what follows from the state (`situation` and `next_step`, with `inputs`, `replacement` and
`due`; `attempt` with `effect`; `approval` and `twin`; `outcome`), and the rules that they rest on
(`difference`, `ownership`, `api_health`, `backoff`).
"""
