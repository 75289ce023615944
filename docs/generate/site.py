"""Builds the documentation site into a folder, by default ``build/site``.

Run: ``python -m docs.generate.site [FOLDER]``, or ``make docs``. The pages are those of ``docs/``, the files
that they link to, and the API reference. ``docs/site/zensical.toml`` has the settings of the generator.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Final

from docs.generate import api
from docs.generate.pages import ROOT, Navigation, Pages, navigation

SITE: Final = ROOT / "docs" / "site"
OUTPUT: Final = ROOT / "build" / "site"


def api_entries() -> Navigation:
    """Return the entries of the API reference in the navigation."""
    return [("Modules", "api/index.md"), *((_short(name), f"api/{name}.md") for name in api.MODULES)]


def _short(name: str) -> str:
    return name.removeprefix("autoglm_throttle.")


def collect() -> dict[PurePosixPath, bytes]:
    """Return all files of the site's sources."""
    pages = Pages()
    for path in sorted((ROOT / "docs").glob("*.md")):
        pages.add(path)
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        pages.add(path)
    files = dict(pages.contents)
    files[PurePosixPath("api/index.md")] = api.index_page().encode()
    for name in api.MODULES:
        files[PurePosixPath(f"api/{name}.md")] = api.module_page(name).encode()
    for path in SITE.glob("*.js"):
        files[PurePosixPath("assets") / path.name] = path.read_bytes()
    return files


def navigation_line() -> str:
    """Return the setting ``nav`` of the generator."""

    def entries(given: Navigation) -> str:
        shown = (
            f"{{{json.dumps(title)} = {json.dumps(below) if isinstance(below, str) else entries(below)}}}"
            for title, below in given
        )
        return f"[{', '.join(shown)}]"

    return f"nav = {entries(navigation(api_entries()))}\n"


def stage(folder: Path) -> Path:
    """Write the sources of the site, and return the settings of the generator."""
    for place, content in collect().items():
        path = folder / "pages" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    settings = folder / "zensical.toml"
    text = (SITE / "zensical.toml").read_text("utf-8")
    settings.write_text(text.replace("[project]\n", f"[project]\n{navigation_line()}", 1), "utf-8")
    return settings


def build(output: Path = OUTPUT) -> int:
    """Build the site into a folder, which is replaced. Returns the number of pages.

    Raises:
        RuntimeError: the generator failed, or reported a problem.
    """
    with tempfile.TemporaryDirectory() as name:
        settings = stage(Path(name))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(settings)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our generator
        if done.returncode:
            raise RuntimeError(f"zensical ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(Path(name) / "site", output)
    return len(list(output.rglob("*.html")))


def main() -> None:
    """Build the site, and print where it is and the time it took."""
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    started_s = time.monotonic()
    try:
        pages = build(output)
    except (FileNotFoundError, RuntimeError) as error:
        sys.exit(f"no site: {error}")
    took_s = time.monotonic() - started_s
    sys.stdout.write(f"{output / 'index.html'}: {pages} pages in {took_s:.0f} s\n")


if __name__ == "__main__":
    main()
