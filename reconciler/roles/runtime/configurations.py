"""The ``ProviderConfig``s that the log declares."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import structlog

from events.hold import Hold
from events.log import (
    ApiFellSilent,
    ApiSilenceEnded,
    HoldApproved,
    LogEvent,
    ReleaseForced,
    SpecDeclared,
    SpecWithdrawn,
    TwinDetected,
    UndeclaredCounted,
    UsersCounted,
)
from events.names import PROVIDER_CONFIG_KIND
from events.provider_config import ProviderConfigSpec
from reconciler.resource.turn import ApiSilence, TwinHold
from reconciler.roles.runtime.system_resources import SystemResources

_log = structlog.get_logger(__name__)


class WithdrawnConfig(NamedTuple):
    """A withdrawn configuration that resources may still use.

    ``version`` is the version of the newest event about it. ``users`` is None until the first
    report.
    """

    version: int
    generation: int
    users: UsersCounted | None = None


class Configurations(SystemResources):
    """Every configuration by name that is declared, or withdrawn and still used."""

    kind = PROVIDER_CONFIG_KIND
    event_types = SystemResources.event_types | {
        TwinDetected,
        UndeclaredCounted,
        HoldApproved,
        UsersCounted,
        ReleaseForced,
        ApiFellSilent,
        ApiSilenceEnded,
    }

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, ProviderConfigSpec] = {}
        self.withdrawn: dict[str, WithdrawnConfig] = {}  # withdrawn, and still in effect
        self._spec_versions: dict[str, int] = {}  # versions of the newest read declarations
        self.twins: dict[str, TwinHold] = {}
        self.silences: dict[str, ApiSilence] = {}
        # Counts of undeclared objects by kind, by name, while the scope waits for approval.
        self.new_scopes: dict[str, dict[str, int]] = {}
        self._scope_versions: dict[str, int] = {}

    def apply(self, event: LogEvent) -> None:
        """Fold an event of any resource, including the holds and silence of an API."""
        name = self._name(event.subject)
        if name is None:
            return
        if isinstance(event.data, (UsersCounted, ReleaseForced)):
            self._update_users(name, event)
            return
        if name in self.withdrawn and isinstance(event.data, SpecDeclared):
            self._read_late(name, event.data, event.resourceversion)
        silence = _silence(event)
        if silence is not None:
            known = self.silences.get(name)
            if known is None or silence.version > known.version:
                self.silences[name] = silence
            return
        self._update_scope(name, event)
        hold = _twin_hold(event)
        if hold is None:
            super().apply(event)
        elif name not in self.twins or hold.version > self.twins[name].version:
            approved_by = hold.approved_by or self.twins.get(name, hold).approved_by
            self.twins[name] = hold._replace(approved_by=approved_by)
            if not hold.is_held:
                self._notify(name)

    def _update_scope(self, name: str, event: LogEvent) -> None:
        """Fold the undeclared objects of a new scope, or its approval."""
        match event.data:
            case SpecDeclared() | UndeclaredCounted():
                undeclared = event.data.undeclared
            case SpecWithdrawn() | HoldApproved(hold=Hold.EXCLUSIVE_SCOPE):
                undeclared = None
            case _:
                return
        if event.resourceversion <= self._scope_versions.get(name, 0):
            return
        self._scope_versions[name] = event.resourceversion
        if undeclared is None:
            self.new_scopes.pop(name, None)
        else:
            self.new_scopes[name] = {kind: each.count for kind, each in undeclared.items()}
        if not isinstance(event.data, (SpecDeclared, SpecWithdrawn)):
            self._notify(name)

    def declare(self, name: str, data: SpecDeclared) -> None:
        """Use the newest declaration of a configuration."""
        self.withdrawn.pop(name, None)
        self._read(name, data, self.version(name))

    def _read(self, name: str, data: SpecDeclared, version: int) -> None:
        self._spec_versions[name] = version
        try:
            self.by_name[name] = msgspec.convert(data.fields, ProviderConfigSpec)
        except msgspec.ValidationError as error:  # written by another release
            _log.error(
                "invalid ProviderConfig; its resources are held", name=name, error=str(error)
            )
            self.by_name.pop(name, None)

    def _read_late(self, name: str, data: SpecDeclared, version: int) -> None:
        """Use the declaration before a withdrawal that this process decided, and so read first."""
        if self._spec_versions.get(name, 0) < version < self.version(name):
            self._read(name, data, version)
            self._notify(name)

    def withdraw(self, name: str, data: SpecWithdrawn) -> None:
        """Stop using a configuration, or keep it in effect until nothing uses it."""
        if data.until_unused:
            self.withdrawn[name] = WithdrawnConfig(self.version(name), data.generation)
        else:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Stop using a configuration."""
        self.by_name.pop(name, None)
        self.withdrawn.pop(name, None)

    def _update_users(self, name: str, event: LogEvent) -> None:
        """Fold the users of a withdrawn configuration, or its end by force."""
        known = self.withdrawn.get(name)
        if known is None or event.resourceversion <= known.version:
            return
        users = event.data if isinstance(event.data, UsersCounted) else None
        if users is None or not users.count:
            self.remove(name)
            self._notify(name)
        else:
            self.withdrawn[name] = known._replace(version=event.resourceversion, users=users)


def _silence(event: LogEvent) -> ApiSilence | None:
    match event.data:
        case ApiFellSilent(since):
            return ApiSilence(event.resourceversion, event.id, since)
        case ApiSilenceEnded():
            return ApiSilence(event.resourceversion, event.id, ended_at=event.time)
        case _:
            return None


def _twin_hold(event: LogEvent) -> TwinHold | None:
    """Return the hold that an event sets or ends because of another copy of the log, or None."""
    match event.data:
        case TwinDetected():
            return TwinHold(event.resourceversion, is_held=True)
        case HoldApproved(hold=Hold.TWIN):
            return TwinHold(event.resourceversion, is_held=False, approved_by=event.causationid)
        case _:
            return None
