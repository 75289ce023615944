"""Field types of the shared store: its address, and texts in its keys."""

from __future__ import annotations

import re
from abc import abstractmethod

from pydantic import SecretStr

from autoglm_throttle.settings.field_types import FieldType, FieldTypeError
from autoglm_throttle.settings.masking import masked_url
from autoglm_throttle.settings.redis_address import parse_redis_url
from autoglm_throttle.settings.storage_uri import parse_storage_uri

KEY_CHARACTERS = 60
"""A longer prefix or name would lengthen each key of each user."""

HOST_CHARACTERS = 253
"""RFC 1035: the maximum length of a host name."""

URL_CHARACTERS = 2000
"""Enough for a dozen nodes with long names."""


_QUOTED = re.compile(r"""(?<!\S)(['"])(?![a-z0-9+]+://['"])(?:(?!\1).){4,}\1(?!\S)""")
"""Quoted parts of an error text, except schemes: in a wrong URL any part may be the password."""

_LISTED = re.compile(r"^not a URL of [^:]*: |; the forms are: .*", re.DOTALL)
"""Parts of an error text that repeat the allowed URLs."""


class KeyText(FieldType[str]):
    """A part of a key: no colon, brace or blank, so that two different keys are never one text.

    Args:
        most: characters allowed.
    """

    _TEXT = re.compile(r"[A-Za-z0-9_.-]+")

    def __init__(self, example: str, most: int = KEY_CHARACTERS) -> None:
        self._most = most
        self.example: str = example
        self.allowed: str = f"letters, digits, _ . and -, at most {most}"

    def parse(self, raw: object) -> str:
        """Parse a text that can stand in a key unchanged."""
        text = raw.strip() if isinstance(raw, str) else ""
        if not self._TEXT.fullmatch(text) or len(text) > self._most:
            raise FieldTypeError
        return text


class _StoreUrl(FieldType[SecretStr]):
    """A URL with a password that is never shown."""

    secret = True

    def parse(self, raw: object) -> SecretStr:
        """Accept a URL that names a store."""
        text = raw.get_secret_value() if isinstance(raw, SecretStr) else raw
        if not isinstance(text, str) or not text.strip().isprintable() or len(text) > URL_CHARACTERS:
            raise FieldTypeError
        try:
            self._check(text.strip())
        except ValueError as error:
            # `from None`: the original error may quote the password.
            raise FieldTypeError(_reason(str(error))) from None
        return SecretStr(text.strip())

    def text(self, value: SecretStr) -> str:
        """Return the URL itself: callers that show settings must use ``public``."""
        return value.get_secret_value()

    def public(self, value: SecretStr) -> str:
        """Format the URL without its password."""
        return masked_url(value.get_secret_value())

    @abstractmethod
    def _check(self, text: str) -> None:
        """Check that a URL names a store.

        Raises:
            ValueError: with the reason.
        """


class RedisUrlType(_StoreUrl):
    """Address of Redis or Valkey: one server, Sentinel or Cluster."""

    allowed = (
        "redis://HOST:PORT/DB, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/NAME or "
        "redis+cluster://HOST:PORT; rediss for TLS"
    )
    example = "redis://localhost:6379/0"

    def _check(self, text: str) -> None:
        parse_redis_url(text)


class StorageUriType(_StoreUrl):
    """A storage of the ``limits`` package."""

    allowed = "an asynchronous storage of the limits package: async+memcached://HOST:PORT, async+mongodb://HOST:PORT"
    example = "async+memcached://localhost:11211"

    def _check(self, text: str) -> None:
        parse_storage_uri(text)


def _reason(text: str) -> str:
    return _QUOTED.sub("'...'", _LISTED.sub("", text))
