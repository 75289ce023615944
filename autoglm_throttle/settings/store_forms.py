"""Forms of what is said about the store that processes share: its address, and texts that stand in keys."""

from __future__ import annotations

import re
from abc import abstractmethod

from pydantic import SecretStr

from autoglm_throttle.settings.form import Form, FormError
from autoglm_throttle.settings.masked import masked_url
from autoglm_throttle.settings.redis_url import parse_redis_url
from autoglm_throttle.settings.storage_uri import parse_storage_uri

KEY_CHARACTERS = 60
"""A longer prefix or name would be paid for in each key of each user."""

HOST_CHARACTERS = 253
"""RFC 1035: the longest name of a host."""

URL_CHARACTERS = 2000
"""Room for a dozen nodes with long names."""


_QUOTED = re.compile(r"""(?<!\S)(['"])(?![a-z0-9+]+://['"])(?:(?!\1).){4,}\1(?!\S)""")
"""What a complaint quotes, unless it is a scheme: where a URL is wrong, any part may be the password."""

_LISTED = re.compile(r"^not a URL of [^:]*: |; the forms are: .*", re.DOTALL)
"""What the form says as well."""


class KeyText(Form[str]):
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
        """Read a text that can stand in a key as it is."""
        text = raw.strip() if isinstance(raw, str) else ""
        if not self._TEXT.fullmatch(text) or len(text) > self._most:
            raise FormError
        return text


class _StoreUrl(Form[SecretStr]):
    """A URL whose password is never shown."""

    secret = True

    def parse(self, raw: object) -> SecretStr:
        """Take a URL that names a store."""
        text = raw.get_secret_value() if isinstance(raw, SecretStr) else raw
        if not isinstance(text, str) or not text.strip().isprintable() or len(text) > URL_CHARACTERS:
            raise FormError
        try:
            self._check(text.strip())
        except ValueError as error:
            raise FormError(_reason(str(error))) from None
        return SecretStr(text.strip())

    def text(self, value: SecretStr) -> str:
        """The URL itself: callers that show settings must ask for ``public``."""
        return value.get_secret_value()

    def public(self, value: SecretStr) -> str:
        """The URL without its password."""
        return masked_url(value.get_secret_value())

    @abstractmethod
    def _check(self, text: str) -> None:
        """Refuse what names no store.

        Raises:
            ValueError: saying why.
        """


class RedisUrl(_StoreUrl):
    """Where Redis or Valkey is: one server, Sentinel or Cluster."""

    allowed = (
        "redis://HOST:PORT/DB, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/NAME or "
        "redis+cluster://HOST:PORT; rediss for TLS"
    )
    example = "redis://localhost:6379/0"

    def _check(self, text: str) -> None:
        parse_redis_url(text)


class StorageUri(_StoreUrl):
    """A storage of the ``limits`` package."""

    allowed = "an asynchronous storage of the limits package: async+memcached://HOST:PORT, async+mongodb://HOST:PORT"
    example = "async+memcached://localhost:11211"

    def _check(self, text: str) -> None:
        parse_storage_uri(text)


def _reason(text: str) -> str:
    return _QUOTED.sub("'...'", _LISTED.sub("", text))
