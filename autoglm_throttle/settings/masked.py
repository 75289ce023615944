"""Secrets as they may be shown: never, except for what stands around the password of a URL."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "********"

_SECRET_OPTION = re.compile(r"([?&;][^=&;]*(?:pass|pwd|secret|token)[^=&;]*=)[^&;]*", re.IGNORECASE)


def masked_url(text: str) -> str:
    """A URL whose password and secret options are hidden; user name and host stay.

    Meant for texts that may be no URL at all: everything up to the last ``@`` counts as the login, and a
    login without a colon is hidden as a whole, because it may be a password in the wrong place.
    """
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    login, at, tail = rest.rpartition("@")
    if at and login:
        user, colon, password = login.partition(":")
        login = f"{user}:{MASK if password else ''}" if colon else MASK
    return scheme + separator + login + at + _SECRET_OPTION.sub(rf"\g<1>{MASK}", tail)
