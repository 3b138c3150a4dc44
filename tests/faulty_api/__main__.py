"""The command line: `python -m tests.faulty_api --port 8080 --data ./example-api`."""

import sys

from shapes_api.__main__ import main
from tests.faulty_api.app import CuttingProtocol, create_faulty_app

if __name__ == "__main__":
    sys.exit(main(build=create_faulty_app, http=CuttingProtocol))
