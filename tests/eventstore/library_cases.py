"""The library's test module, importable even without the package that its AES cipher needs.

`eventsourcing.tests.persistence` imports the cipher at its top. Without `pycryptodome` a stand-in
lets the other cases run, and the three cases for the cipher are skipped with the reason.
"""

import importlib.util
import sys
from types import ModuleType

HAS_CIPHER = importlib.util.find_spec("Crypto") is not None
NO_CIPHER = "pycryptodome, which eventsourcing.cipher needs, is not installed"

if not HAS_CIPHER:
    stand_in = ModuleType("eventsourcing.cipher")
    stand_in.__dict__["AESCipher"] = type("AESCipher", (), {})
    sys.modules.setdefault(stand_in.__name__, stand_in)

from eventsourcing.tests import persistence as cases  # noqa: E402 - after the stand-in

__all__ = ["HAS_CIPHER", "NO_CIPHER", "cases"]
