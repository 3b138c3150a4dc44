"""The cost of crashes: numbers of effects, duplicates, leaks and losses, and the recovery time.

    ./run python -m benchmarks.faults

Every process is real and dies by SIGKILL. The counts come from the log and the API's own journal
(``tests.judge``), never from the product's read models.
"""
