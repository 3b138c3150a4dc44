"""Keeping a resolved secret out of everything that is told: messages, logs, and the event log.

An API may repeat what it was sent, an exception may quote a header. What leaves a provider passes
here, so that a secret in it is replaced (invariant 12).
"""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

HIDDEN = "***"
LEAST_CHARACTERS = 4
"""What is shorter is no secret, and hiding it would spoil every other word."""


class Secrecy:
    """Hides one secret in the forms in which it may be repeated."""

    def __init__(self, secret: str | None) -> None:
        self._forms = _forms((secret or "").strip())
        self._encoded = [form.encode() for form in self._forms]

    def add(self, secret: str) -> None:
        """Hide another secret too."""
        forms = {*self._forms, *_forms(secret.strip())}
        self._forms = sorted(forms, key=len, reverse=True)
        self._encoded = [form.encode() for form in self._forms]

    def __repr__(self) -> str:
        return f"Secrecy({len(self._forms)} forms)"

    def is_in(self, text: str) -> bool:
        """Whether a text repeats the secret."""
        return any(form in text for form in self._forms)

    def hide(self, text: str) -> str:
        """Return a text without the secret."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def hide_in_bytes(self, content: bytes) -> bytes:
        """Return content without the secret; the same object where it is not in it."""
        for form in self._encoded:
            if form in content:
                content = content.replace(form, HIDDEN.encode())
        return content


def _forms(secret: str) -> list[str]:
    """Return the secret as it is, as JSON and URLs write it, and in base64; the longest first."""
    if len(secret) < LEAST_CHARACTERS:
        return []
    escaped = json.dumps(secret)[1:-1]
    encoded = base64.b64encode(secret.encode()).decode()
    found = {secret, escaped, escaped.replace("/", "\\/"), quote(secret, safe=""), encoded}
    return sorted(found, key=len, reverse=True)
