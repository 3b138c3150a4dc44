"""Field types shared by several events, with their JSON Schema descriptions."""

from __future__ import annotations

from typing import Annotated

import msgspec


def description(text: str) -> msgspec.Meta:
    """Return the metadata that describes a field."""
    return msgspec.Meta(description=text)


ConfigName = Annotated[str, description("Name of the ProviderConfig.")]
ExternalName = Annotated[str, description("Name of the object in its API.")]
Uid = Annotated[str | None, description("UID of the object; null if its API has none.")]
ResourceName = Annotated[str, description("Resource, as NAMESPACE/KIND/NAME.")]
Target = Annotated[str, description("Referenced resource, as NAMESPACE/KIND/NAME.")]
ReferencedBy = Annotated[
    str, description("Resource that contains the reference, as NAMESPACE/KIND/NAME.")
]
Secret = Annotated[str, description("Secret, as STORE/NAME or STORE/NAMESPACE/NAME.")]
SecretDigest = Annotated[
    str, description("Keyed digest of the secret's value; empty if the secret does not exist.")
]
Reason = Annotated[str, description("Reason to show in the history.")]
Finalizer = Annotated[str, description("Name of the finalizer.")]
Attempt = Annotated[int, description("Number of the attempt.")]
IsReplayed = Annotated[
    bool, description("Whether the API returned a stored response for the idempotency key.")
]
KnownVersion = Annotated[
    int, description("Version of the resource that the reporter had read; 0 if unknown.")
]
ComparedVersion = Annotated[
    int,
    description(
        "Version of the resource that the observer had read before it compared its listing with "
        "the log; 0 if none."
    ),
]
ApiErrorText = Annotated[str, description("Error returned by the API.")]
Missing = Annotated[int, description("Number of owned objects that the listing does not contain.")]
Owned = Annotated[int, description("Number of owned objects in the scope of the listing.")]
UserCount = Annotated[int, description("Number of resources that use the ProviderConfig.")]
UserNames = Annotated[
    tuple[str, ...], description("The first few of them, as NAMESPACE/KIND/NAME.")
]
FoundAs = Annotated[
    str,
    description(
        "Name of another object with the uid of the absent one, in the same listing; empty if none."
    ),
]
