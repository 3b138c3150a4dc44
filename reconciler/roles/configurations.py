"""The declared ``ProviderConfig``s, as the log has them."""

from __future__ import annotations

import msgspec
import structlog

from events.log import SpecDeclared
from events.names import PROVIDER_CONFIG_KIND
from events.provider_config import ProviderConfigSpec
from reconciler.roles.system_resources import SystemResources

_log = structlog.get_logger(__name__)


class Configurations(SystemResources):
    """Every declared configuration by name."""

    kind = PROVIDER_CONFIG_KIND

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, ProviderConfigSpec] = {}

    def declare(self, name: str, data: SpecDeclared) -> None:
        """Use a configuration as it is declared now."""
        try:
            self.by_name[name] = msgspec.convert(data.fields, ProviderConfigSpec)
        except msgspec.ValidationError as error:  # written by another release
            _log.error(
                "invalid ProviderConfig; its resources are held", name=name, error=str(error)
            )
            self.by_name.pop(name, None)

    def withdraw(self, name: str) -> None:
        """Use a configuration no more."""
        self.by_name.pop(name, None)
