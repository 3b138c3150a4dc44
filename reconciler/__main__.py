"""``python -m reconciler``: the command line."""

import sys

from reconciler.cli.entry import main

sys.exit(main())
