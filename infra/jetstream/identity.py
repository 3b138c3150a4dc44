"""The user of a connection, from a key file or from the URL.

Each connection rereads the file, so a reconnect picks up a replaced key or a renewed JWT. nats-py's
own support reads an nkey only once, and loops endlessly over a half-written `.creds` file.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from infra.jetstream.access import Access
from infra.jetstream.errors import BusAccessError
from infra.named_files import MAX_KEY_BYTES, read_at_most

DEFAULT_INBOX_PREFIX: Final = "_INBOX"

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_INBOX: Final = re.compile(r"_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_JWT_BLOCK: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END NATS USER JWT-+")
_SEED_BLOCK: Final = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END USER NKEY SEED-+")
_SEED: Final = re.compile(r"^\s*(SU[A-Z2-7]{56})\s*$", re.MULTILINE)


class _Claims(msgspec.Struct):
    name: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """The content of a key file. Only `sign` uses the secret part.

    Attributes:
        public: the public key.
        jwt: the user's JWT; empty for an nkey.
        name: the user's name in the JWT; the public key for an nkey.
    """

    seed: str
    public: str
    jwt: str
    name: str

    def __repr__(self) -> str:
        return f"Key(public={self.public!r}, name={self.name!r})"

    def sign(self, nonce: str) -> bytes:
        """Return the signature of the server's nonce, in base64."""
        pair = _key_pair(self.seed)
        try:
            return base64.b64encode(pair.sign(nonce.encode()))
        finally:
            pair.wipe()


class KeyFile:
    """A file with a user's key: a `.creds` file, or an nkey seed."""

    def __init__(self, path: Path, *, with_jwt: bool, content: str | None = None) -> None:
        """Locate the key. If `content` is given, `path` is only its name in errors."""
        self.path = path
        self._with_jwt = with_jwt
        self._content = content

    def read(self) -> Key:
        """Read the key from the file's current content.

        Raises:
            BusAccessError: the file cannot be read, or is not a key file. The message never
                contains its content.
        """
        text = self._read_text() if self._content is None else self._content
        return self._parse_credentials(text) if self._with_jwt else self._parse_nkey(text)

    def _read_text(self) -> str:
        try:
            return read_at_most(self.path, MAX_KEY_BYTES).decode("ascii")
        except OSError as error:
            raise BusAccessError(f"cannot read {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BusAccessError(f"{self.path} is not a key file: it is not text") from None

    def _parse_credentials(self, text: str) -> Key:
        jwt, seed = _JWT_BLOCK.search(text), _SEED_BLOCK.search(text)
        if jwt is None or seed is None:
            raise BusAccessError(
                f"{self.path} is not a .creds file; it must contain a user's JWT and its seed, "
                "each between its BEGIN and END lines"
            )
        public = self._public_key(seed.group(1))
        return Key(seed.group(1), public, jwt.group(1), _name_in(jwt.group(1)) or public)

    def _parse_nkey(self, text: str) -> Key:
        seed = _SEED.search(text)
        if seed is None:
            raise BusAccessError(
                f"{self.path} does not contain a user nkey seed; expected a line starting with SU"
            )
        public = self._public_key(seed.group(1))
        return Key(seed.group(1), public, "", public)

    def _public_key(self, seed: str) -> str:
        try:
            return bytes(_key_pair(seed).public_key).decode()
        except (binascii.Error, ValueError):
            raise BusAccessError(f"{self.path}: the seed is invalid") from None


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials for a server other than the bus, from a secret instead of the environment.

    If no attribute is set, the connection has no user.

    Attributes:
        user: a user's name, with `password`.
        token: a token, instead of a user.
        key: a `.creds` file or an nkey file, instead of a user.
    """

    user: str = ""
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    key: KeyFile | None = field(default=None, repr=False)


def parse_login(secret: str, *, what: str) -> Login:
    """Parse `user:password`, a token, or the content of a `.creds` or nkey file.

    Raises:
        BusAccessError: the secret is in none of these formats. The message contains `what`, never
        the secret.
    """
    text, location = secret.strip(), Path(what)
    if "BEGIN NATS USER JWT" in text or _SEED.fullmatch(text):
        key = KeyFile(location, with_jwt="BEGIN NATS USER JWT" in text, content=text)
        key.read()
        return Login(key=key)
    if not text or not text.isprintable():
        raise BusAccessError(
            f"{what}: must be a token, user:password, or the content of a .creds or nkey file"
        )
    user, colon, password = text.partition(":")
    return Login(user=user, password=password) if colon else Login(token=text)


class Identity:
    """The user of a connection, for reply subjects and error messages.

    Attributes:
        key_file: file with the key; None if the user is in the URL or there is no user.
        user: the name for error messages, from the URL or the key.
        inbox_prefix: first tokens of the reply subjects.
    """

    def __init__(self, urls: Sequence[str], access: Access, login: Login | None = None) -> None:
        """Determine the user.

        Raises:
            BusAccessError: the key file or the inbox prefix is invalid.
        """
        self.key_file = _key_file(access) if login is None else login.key
        if self.key_file is not None:
            user_name = self.key_file.read().name
        else:
            user_name = _user_of(urls) if login is None else login.user
        self.user = user_name or "(no user)"
        self.inbox_prefix = access.inbox_prefix or _inbox_of(user_name)
        if _INBOX.fullmatch(self.inbox_prefix) is None:
            raise BusAccessError(
                f"inbox prefix {self.inbox_prefix[:80]!r}: invalid; it must start with _INBOX "
                "and have no wildcards, as in _INBOX.billing"
            )

    def __str__(self) -> str:
        suffix = "" if self.key_file is None else f" from {self.key_file.path}"
        return f"{self.user}{suffix}"


def _key_pair(seed: str) -> Any:
    """Return the key pair of a seed.

    Raises:
        ValueError: the seed is invalid.
    """
    import nkeys  # noqa: PLC0415 - 30 ms, only for users with a key

    try:
        return nkeys.from_seed(bytearray(seed.encode()))  # pyright: ignore[reportUnknownMemberType]
    except nkeys.NkeysError as error:
        raise ValueError(type(error).__name__) from None


def _key_file(access: Access) -> KeyFile | None:
    if access.credentials is not None:
        return KeyFile(access.credentials, with_jwt=True)
    return None if access.nkey is None else KeyFile(access.nkey, with_jwt=False)


def _user_of(urls: Sequence[str]) -> str:
    """Return the first user in the URLs. A user without a password is a token and thus secret."""
    for url in urls:
        try:
            parts = urlsplit(url if "//" in url else f"//{url}")
            if parts.username and parts.password is not None:
                return unquote(parts.username)
        except ValueError:
            continue
    return ""


def _inbox_of(user: str) -> str:
    """Return the user's inbox prefix, with the name as a separate token for permissions."""
    if _TOKEN.fullmatch(user) is None:
        return DEFAULT_INBOX_PREFIX
    return f"{DEFAULT_INBOX_PREFIX}.{user}"


def _name_in(jwt: str) -> str:
    try:
        body = jwt.split(".")[1]
        claims: Any = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return msgspec.json.decode(claims, type=_Claims).name
    except (IndexError, ValueError, msgspec.DecodeError):
        return ""
