"""The aggregate of one resource: pure, without a clock, a random source or I/O.

The modules, in reading order:

- `state`: the folded state of a resource
- `turn`: the inputs and the result of a decision
- `decide`: the decision, from commands to events
- `rules`: the rules whose results the events record
- `evolve`: the fold of each event
- `declaration`, `observation`, `result`, `holds`: the events of each kind of command
- `situation`, `next_step`: the next step, from the state alone
- `inputs`, `availability`, `replacement`, `renewal`, `contention`, `progress`, `permission`: parts
  of the next step
- `attempt`, `effect`: an action from its decision to its end
- `approval`, `twin`, `outcome`: guards of actions, and the public outcome
- `difference`, `ownership`, `owner_label`, `api_health`, `backoff`, `cycle`: shared rules
- `expectation`: expected results, for plans
"""
