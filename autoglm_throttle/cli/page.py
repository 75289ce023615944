"""``page``: prints the live page of a running service in the terminal."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from autoglm_throttle.cli.output import EXIT_OK, WRONG_USAGE, add_format, table, to_stderr, write, write_json
from autoglm_throttle.settings import Settings
from autoglm_throttle.types import ThrottleError

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 10_000_000

EXAMPLES: Final = """\
examples:
  autoglm-throttle page http://127.0.0.1:8000/throttle/
  AUTOGLM_THROTTLE_STATUS_TOKEN=... autoglm-throttle page https://gpu-1.example/throttle/ --format json

exit status: 0 the page was printed, 1 it could not be read, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the address; the token comes from the environment, where no list of processes shows it."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("url", metavar="URL", help="address of the page")
    parser.add_argument("--configuration", action="store_true", help="print the settings, too")
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Read the document of the page, and print it."""
    parts = urlsplit(args.url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        to_stderr(f"page: {args.url!r} must be a URL with http:// or https://\n")
        return WRONG_USAGE
    token = Settings.from_env(user_limit="off").observe.status_token
    document = read(args.url.rstrip("/") + "/", None if token is None else token.get_secret_value())
    if args.format == "json":
        write_json(document)
    else:
        write("\n".join(lines(document, configuration=args.configuration)))
    return EXIT_OK


def read(url: str, token: str | None) -> dict[str, Any]:
    """Read the document.

    Raises:
        ThrottleError: it could not be read.
    """
    fields = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}data.json", headers=fields)  # noqa: S310 - http and https alone
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            found = json.loads(answer.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        hint = ": set AUTOGLM_THROTTLE_STATUS_TOKEN" if error.code in {401, 403} else ""
        raise ThrottleError(f"{url} answers {error.code} {error.reason}{hint}") from None
    except (OSError, ValueError) as error:
        raise ThrottleError(f"{url} cannot be read: {error}") from None
    if not isinstance(found, dict) or "sections" not in found:
        raise ThrottleError(f"{url} is no live page")
    return found


def lines(document: dict[str, Any], *, configuration: bool) -> Iterator[str]:
    """Yield the lines of a document; plots are left out."""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(document["at"]))
    yield from (document["sentence"], f"As of {at}")
    for section in document["sections"]:
        if section["id"] == "configuration" and not configuration:
            continue
        yield from ("", section["title"])
        if section["pairs"]:
            yield _indented(table(section["pairs"]))
        for one in section["tables"]:
            yield from (f"  {one['caption']}", _indented(table([one["head"], *one["rows"]]), "    "))


def _indented(text: str, by: str = "  ") -> str:
    return "\n".join(f"{by}{line}" for line in text.splitlines())
