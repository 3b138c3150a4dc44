"""What crashes cost: effects, duplicates, leaks and losses counted, and the time to recover.

    ./run python -m benchmarks.faults

Every process is real and dies by SIGKILL; what is counted comes from the log and from the API's own
journal (``tests.judge``), never from the product's read models.
"""
