"""Masks secrets for display."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "********"

_SECRET_OPTION = re.compile(r"([?&;][^=&;]*(?:pass|pwd|secret|token)[^=&;]*=)[^&;]*", re.IGNORECASE)


def masked_url(text: str) -> str:
    """Mask the password and the secret options of a URL; user name and host stay.

    Also accepts texts that may be no URL: everything up to the last ``@`` counts as the login.
    """
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    login, at, tail = rest.rpartition("@")
    if at and login:
        user, colon, password = login.partition(":")
        # A login without a colon is masked as a whole: it may be a password in the wrong place.
        login = f"{user}:{MASK if password else ''}" if colon else MASK
    return scheme + separator + login + at + _SECRET_OPTION.sub(rf"\g<1>{MASK}", tail)
