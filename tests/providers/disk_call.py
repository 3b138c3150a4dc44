"""Make one call to a disk provider, in a process that may kill itself before a step.

Reads the call from standard input and prints the result, unless it kills itself (SIGKILL).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.provider_config import Limits, ProviderConfigSpec
from infra.providers.disks.attachment import ATTACHMENT
from infra.providers.disks.disk import DISK
from reconciler.errors import ReconcilerError
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.secrets import Secrets
from tests.providers.permit import ClosedGate


class Call(msgspec.Struct):
    """A call, and the step before which the process kills itself; 0: never."""

    kind: str
    endpoint: str
    action: Action
    dies_before: int = 0


class CallResult(msgspec.Struct):
    """The result of a call."""

    object: ExternalObject | None = None
    error: str = ""


class _KillBeforeStep(ClosedGate):
    """Call gate that kills the process before a step."""

    def __init__(self, step: int) -> None:
        self._remaining = step

    async def wait(self, *, has_priority: bool = False) -> None:
        del has_priority
        self._remaining -= 1
        if self._remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def run_call(call: Call) -> CallResult:
    kind = {each.name: each for each in (DISK, ATTACHMENT)}[call.kind]
    config = ProviderConfigSpec("disks", call.endpoint, limits=Limits(request_timeout_seconds=60))
    assert kind.connect is not None
    provider = kind.connect(config, Secrets(), CallPermit())
    CALL_GATE.set(_KillBeforeStep(call.dies_before))
    calls = {"Create": provider.create, "Update": provider.update, "Delete": provider.delete}
    try:
        return CallResult((await calls[call.action.operation](call.action)).object)
    except ReconcilerError as error:
        return CallResult(error=f"{type(error).__name__}: {error}")
    finally:
        await provider.close()


if __name__ == "__main__":
    result = asyncio.run(run_call(msgspec.json.decode(sys.stdin.buffer.read(), type=Call)))
    sys.stdout.buffer.write(msgspec.json.encode(result))
