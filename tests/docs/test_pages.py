"""Every block of code in README.md and docs/ runs as it is printed."""

import asyncio
import io
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from autoglm_throttle import Throttle, ThrottleMiddleware
from autoglm_throttle.cli import main
from autoglm_throttle.gpu.recorded import COLUMNS
from autoglm_throttle.settings import PREFIX, Settings, settings_table
from examples.existing_service import app as existing
from tests.docs.pages import (
    LOAD_TEST_COMMANDS,
    PAGES,
    ROOT,
    SERVING_COMMANDS,
    Block,
    Command,
    blocks,
    commands,
)

PROGRAMS = [
    block
    for block in blocks("python")
    if "def test_" not in block.text and block.page != "testing-your-app.md"
]
CHECKED = [
    command
    for command in commands()
    if command.words[0] == "autoglm-throttle"
    and command.words[1:2] not in (*LOAD_TEST_COMMANDS, *SERVING_COMMANDS)
]


@pytest.fixture(autouse=True)
def _as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(f"{PREFIX}GPU", "none")


def ran(block: Block) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "printed"}
    exec(compile(block.text, str(block), "exec"), names)
    return names


def with_text(text: str) -> Block:
    return next(block for block in PROGRAMS if text in block.text)


async def get(app: Any, fields: dict[str, str] | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get("/ask", headers=fields or {})


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
async def test_a_program_runs_and_its_app_answers(block: Block) -> None:
    names = await asyncio.to_thread(ran, block)  # a program may start a loop of its own
    if "app" in names:
        assert (await get(names["app"])).status_code in {200, 404}


async def test_page_of_another_origin_can_read_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}USER_LIMIT", "1/minute")
    app = ran(with_text("CORSMiddleware"))["app"]
    origin = {"origin": "https://example.com"}
    assert (await get(app, origin)).status_code == 404
    refused = await get(app, origin)
    assert refused.status_code == 429
    assert refused.headers["access-control-allow-origin"] == "https://example.com"
    assert "retry-after" in refused.headers["access-control-expose-headers"]


async def test_marks_and_charges_of_the_fastapi_page_apply() -> None:
    app = ran(with_text("APIRouter"))["app"]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        image = await client.post("/v1/images")
        ready = await client.get("/v1/ready")
        waited = await client.post("/v1/wait")
    assert image.headers["x-ratelimit-remaining-requests"] == "95"  # one unit, and four more
    assert "x-ratelimit-remaining-requests" not in ready.headers
    assert waited.status_code == 200
    operations = app.openapi()["paths"]
    assert "429" in operations["/v1/images"]["post"]["responses"]
    assert "429" not in operations["/v1/ready"]["get"]["responses"]


async def test_a_callers_own_key_finds_its_plan() -> None:
    app = ran(with_text("identify=identify"))["app"]
    known = await get(app, {"x-api-key": "a-key-from-your-database"})
    assert known.headers["ratelimit-policy"] == '"user-60s";q=1000;w=60'
    assert (await get(app)).headers["ratelimit-policy"] == '"user-60s";q=10;w=60'


async def test_the_printed_identity_is_a_member_of_the_printed_plan(tmp_path: Path) -> None:
    (command,) = [command for command in CHECKED if command.words[1] == "identity"]
    path = tmp_path / "throttle.toml"
    path.write_text(next(block.text for block in blocks("toml") if "members" in block.text))
    environ = {**command.environment, f"{PREFIX}CONFIG_FILE": str(path), f"{PREFIX}GPU": "none"}
    app = ThrottleMiddleware(existing, throttle=Throttle(Settings.from_env(environ)))
    member = await get(app, {"authorization": f"Bearer {command.given}"})
    assert member.headers["ratelimit-policy"] == '"user-60s";q=1000;w=60'
    assert "ratelimit-policy" not in (await get(app)).headers


@pytest.mark.parametrize("command", CHECKED, ids=str)
def test_command_prints_the_documented_output(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command.words[1] in {"dashboards", "ports"}:  # they write files
        (tmp_path / "monitoring").mkdir()
        monkeypatch.chdir(tmp_path)
    for name, value in command.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", io.StringIO(command.given))
    assert main(command.words[1:]) == 0
    if command.printed.strip():
        assert capsys.readouterr().out.strip() == command.printed.strip()


def test_no_other_program_is_named_than_those_that_are_tried() -> None:
    tried = {"autoglm-throttle", "uvicorn", "vllm"}  # the last one in benchmarks/vllm_cases
    others = [" ".join(command.words) for command in commands() if command.words[0] not in tried]
    assert others == ["pip install .[all]", "make demo", "make test"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


def test_the_page_for_the_start_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"pynvml", "all"}
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == extras


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_a_configuration_file_is_right(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "throttle.toml"
    path.write_text(block.text)
    environ = {f"{PREFIX}CONFIG_FILE": str(path), f"{PREFIX}KEY_SECRET": "a secret of 16 bytes or more"}
    settings = Settings.from_env(environ)
    assert settings.routes or settings.plans or settings.guards


@pytest.mark.slow
def test_the_printed_recording_plays_and_every_column_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks("csv")
    (tmp_path / "gpus.csv").write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"{PREFIX}GPU", "fake:gpus.csv")
    assert main(["gpus"]) == 0
    page = (ROOT / "docs" / block.page).read_text(encoding="utf-8")
    printed = {
        row.split()[0]: row.split() for row in capsys.readouterr().out.splitlines() if row[:1].isdigit()
    }
    for words in (row.split() for row in page.splitlines() if row.endswith("  fake")):
        read = slice(6)  # behind it: what a single look may be too short for
        assert printed[words[0]][read] == words[read], "the picture is of these rows"
    table = page.partition("| of | columns |")[2].partition("\n\n")[0]
    assert set(COLUMNS) <= set(re.findall(r"`(\w+)`", table))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_it_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace(PREFIX, "")
    named = set(re.findall(r"`([A-Z][A-Z0-9_]{2,})(?:=[\w.:]+)?`", text))
    variables = {name.upper() for name, known in settings_table().items() if not known.file_only}
    assert named <= variables | {"GET", "HEAD", "OPTIONS", "PROMETHEUS_MULTIPROC_DIR", "WEB_CONCURRENCY"}


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES[1:]} - {"index.md"} <= set(re.findall(r"\]\(([\w-]+\.md)\)", index))
