"""Types of fields that several events share, with the description in the JSON Schema."""

from __future__ import annotations

from typing import Annotated

import msgspec


def about(text: str) -> msgspec.Meta:
    """Return the description of a field."""
    return msgspec.Meta(description=text)


ConfigName = Annotated[str, about("Name of the ProviderConfig.")]
ExternalName = Annotated[str, about("Name of the object in its API.")]
Uid = Annotated[str | None, about("Uid of the object. null: its API has none.")]
ResourceName = Annotated[str, about("Resource, as NAMESPACE/KIND/NAME.")]
Target = Annotated[str, about("Referenced resource, as NAMESPACE/KIND/NAME.")]
ReferencedBy = Annotated[str, about("Resource with the reference, as NAMESPACE/KIND/NAME.")]
Secret = Annotated[str, about("Secret, as STORE/NAME or STORE/NAMESPACE/NAME.")]
SecretDigest = Annotated[
    str, about("Keyed digest of the secret's value. Empty: the secret does not exist.")
]
Reason = Annotated[str, about("Reason, for the history.")]
Finalizer = Annotated[str, about("Name of the finalizer.")]
Attempt = Annotated[int, about("Number of the attempt.")]
IsReplayed = Annotated[bool, about("Whether the API returned a stored response for the key.")]
KnownVersion = Annotated[
    int, about("Version of the resource that the reporter had read. 0: unknown.")
]
ComparedVersion = Annotated[
    int,
    about(
        "Version of the resource that the observer had read before it compared its listing with "
        "the log. 0: none."
    ),
]
ApiErrorText = Annotated[str, about("Error of the API.")]
Missing = Annotated[int, about("Number of owned objects that the listing does not contain.")]
Owned = Annotated[int, about("Number of owned objects in the scope of the listing.")]
