"""Passwords and keys in URLs are never shown, whatever setting they were given to."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle import Throttle
from autoglm_throttle.cli import main
from autoglm_throttle.settings import PREFIX, ConfigError, Settings, SettingSource, settings_table

SECRET = "QXZJ-VKQX-JZKV"

ACCEPTED = (
    "vllm:http://h:1/?api_key={}",
    "dcgm:http://h:1/metrics?key={}",
    "prometheus:https://h/?a=1&x={}&b=2",
    "sglang:http://h/?a=1;b={}",
    "vllm:http://h/?a=b={}",
    "vllm:http://h/?a=1,{}",
    "vllm:http://h/?{}",
    "vllm:http://h/?api%5Fkey={}",
    "vllm:http://user:{}@h:1/",
    "vllm:http://user:{}@h:1/?a={}",
    "dcgm:http://:{}@h/",
    "prometheus:https://{}@h/",
    "nvml,vllm:http://a/?x={},dcgm:http://b/?y={}",
)
"""Values of ``GPU`` with a secret: as a query option or its value, or as the user information."""

REJECTED = (
    "vllm:http:/user:{}@h",
    "vllm:http:/{}@h",
    "vllm:http:///user:{}@h",
    "vllm:user:{}@h",
    "vlmm:http://h/?k={}",
    "vllm:ftp://h/?k={}",
    "vllm:http://h:0x/?k={}",
    "vllm:http://h/?k={}#f",
    "vllm:http://h/?k=1#{}",
    "vllm:http://h/a b?k={}",
    "vllm:http://[::1/?k={}",
    "vllm:h/?k={}",
    "vllm:/?k={}",
    "nvml:http://user:{}@h",
    "vllm:http://{}:pw@h:0x",
    "nvml,nvml,vllm:http://h/?k={}",
    "vllm:http://h/?k={},vllm:http://h/?k={}",
    "redis:/user:{}@host",
    "redis://user:{}@host",
)
"""Wrong values of ``GPU`` with a secret."""

FORMS = (
    "redis://user:{}@host:6379/0",
    "redis://:{}@host",
    "redis://{}@host",
    "redis:/user:{}@host",
    "redis:/{}@host",
    "redis:///user:{}@host",
    "https://host/path?api_key={}",
    "https://host/path?a=1&key={}",
)
"""URLs that somebody may give to the wrong setting."""


def given_to(name: str, value: Any) -> list[Callable[[], Settings]]:
    """The ways to give a value to one setting: in code, as a variable, in a file."""
    alone: dict[str, Any] = {name: value}
    listed: dict[str, Any] = {name: [value]}
    ways: list[Callable[[], Settings]] = [
        lambda: Settings.from_env({}, **alone),
        lambda: Settings.from_env({}, **listed),
        lambda: Settings.from_env({PREFIX + name.upper(): str(value)}),
    ]
    if name != "config_file":
        line = f"{name} = {json.dumps(str(value))}\n"
        ways.append(lambda: of_file(line))
    return ways


def of_file(text: str) -> Settings:
    """Read a configuration file in the current folder."""
    Path("throttle.toml").write_text(text, "utf-8")
    return Settings.from_env({PREFIX + "CONFIG_FILE": "throttle.toml"})


WITH_SECRETS = ("redis_url", "key_secret", "gpu")
"""Settings whose values are masked; a secret in another value is no secret of the settings."""


def shown_by(make: Callable[[], Settings]) -> str:
    """Return the texts that show accepted secrets, or the error with all that a log of it holds."""
    try:
        made = make()
    except ConfigError as error:
        return "".join([str(error), repr(error), *traceback.format_exception(error)[1:]])
    given = [name for name in WITH_SECRETS if made.source_of(name) is not SettingSource.DEFAULT]
    return "\n".join([repr(made), str(made), *(made.text_of(name) for name in given)] if given else [])


def parts_of(secret: str, text: str) -> list[str]:
    """Find the parts of a secret, of five characters, that a text shows in upper or lower case."""
    lower = text.lower()
    parts = (secret[at : at + 5].lower() for at in range(len(secret) - 4))
    return [part for part in parts if part in lower]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test."""
    monkeypatch.chdir(tmp_path)


class TestGpuUrls:
    """Telemetry URLs with a key or a login."""

    @pytest.mark.parametrize("form", ACCEPTED)
    def test_settings_mask_secrets_of_gpu_urls(self, form: str) -> None:
        made = Settings(gpu=form.replace("{}", SECRET))
        assert parts_of(SECRET, "".join([repr(made), str(made), made.text_of("gpu")])) == []
        assert SECRET in "".join(made.value_of("gpu"))

    @pytest.mark.parametrize("form", ACCEPTED)
    @pytest.mark.parametrize("words", [["show"], ["show", "--format", "json"], ["check"]], ids=" ".join)
    def test_commands_mask_secrets_of_gpu_urls(
        self,
        form: str,
        words: list[str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv(PREFIX + "GPU", form.replace("{}", SECRET).replace("nvml,", ""))
        assert main(words) == 0
        output = capsys.readouterr()
        assert "GPU" in output.out.upper() or words == ["check"]
        assert parts_of(SECRET, output.out + output.err) == []

    @pytest.mark.parametrize("form", ACCEPTED)
    def test_start_log_masks_secrets_of_gpu_urls(self, form: str, caplog: pytest.LogCaptureFixture) -> None:
        gpu = form.replace("{}", SECRET).replace("nvml,", "")
        throttle = Throttle(Settings(gpu=gpu), sampling="manual")
        with caplog.at_level(logging.DEBUG, "autoglm_throttle"):
            throttle.start()
        throttle.stop()
        logged = "".join(str(vars(record)) for record in caplog.records)
        assert "gpu=" in logged
        assert parts_of(SECRET, logged) == []

    @pytest.mark.parametrize("form", REJECTED)
    @pytest.mark.parametrize("beside", [{}, {"workers": 0}], ids=["alone", "beside another"])
    def test_problem_of_gpu_url_masks_secrets(self, form: str, beside: dict[str, Any]) -> None:
        value = form.replace("{}", SECRET)
        for gpu in (value, value.split(",")):
            with pytest.raises(ConfigError) as caught:
                Settings(gpu=gpu, **beside)
            assert parts_of(SECRET, str(caught.value)) == []
            assert "gpu" in [problem.variable for problem in caught.value.problems]

    @pytest.mark.parametrize("form", REJECTED)
    def test_check_masks_secrets_of_wrong_gpu_urls(
        self, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv(PREFIX + "GPU", form.replace("{}", SECRET))
        assert main(["check"]) == 1
        assert parts_of(SECRET, capsys.readouterr().out) == []

    def test_masked_url_keeps_host_and_names_of_options(self) -> None:
        made = Settings(gpu=f"vllm:http://user:{SECRET}@h:8000/metrics?api_key={SECRET}&zone=eu")
        shown = made.text_of("gpu")
        assert "@h:8000/metrics?api_key=" in shown
        assert "zone=" in shown


class TestAnySetting:
    """URLs given to a setting that takes none."""

    @pytest.mark.parametrize("name", settings_table())
    def test_url_in_any_setting_shows_no_secret(self, name: str) -> None:
        shown = {
            form: parts_of(SECRET, shown_by(make))
            for form in FORMS
            for make in given_to(name, form.format(SECRET))
        }
        assert [form for form, parts in shown.items() if parts] == []

    @pytest.mark.parametrize("form", FORMS)
    def test_url_as_config_file_shows_no_secret(self, form: str) -> None:
        value = form.format(SECRET)
        ways: list[Callable[[], Settings]] = [
            lambda: Settings.from_env({PREFIX + "CONFIG_FILE": value}),
            lambda: Settings.from_env({}, config_file=value),
            lambda: Settings.from_env({}, config_file=Path(value)),
            lambda: Settings.from_env({}, env_file=value),
        ]
        for make in ways:
            with pytest.raises(ConfigError) as caught:
                make()
            assert parts_of(SECRET, str(caught.value)) == []
            assert caught.value.problems[0].variable.lower().endswith(("config_file", "env_file"))

    @given(data=st.data())
    @settings(max_examples=20 * settings().max_examples)
    def test_secret_anywhere_in_a_url_is_not_in_the_message(self, data: st.DataObject) -> None:
        secret = data.draw(st.text("QXZJVK", min_size=8, max_size=24))
        name = data.draw(st.sampled_from(list(settings_table())))
        value = data.draw(st.sampled_from(["", " ", "a,", "5 ", "5", "'", "x" * 40])) + data.draw(
            urls(secret)
        )
        for make in given_to(name, value):
            message = ""
            try:
                make()
            except ConfigError as error:
                message = str(error)
            assert parts_of(secret, message) == []


SAFE = st.text("abcdefgh0123456789-._~%", max_size=8)


@st.composite
def urls(draw: st.DrawFn, secret: str) -> str:
    """A URL with the secret as user, password or value of an option."""
    scheme = draw(
        st.sampled_from(["redis", "rediss", "redis+sentinel", "http", "HTTPS", "vllm:http", "fake:x"])
    )
    slashes = draw(st.sampled_from(["://", ":/", ":///"]))
    user, password = draw(SAFE), draw(SAFE)
    login = draw(
        st.sampled_from([f"{secret}@", f"{secret}:{password}@", f"{user}:{secret}@", f":{secret}@", ""])
    )
    host = draw(st.sampled_from(["h", "host:6379", "[::1]", "a:1,b:2", ""]))
    path = draw(st.sampled_from(["", "/", "/0", "/a/b.toml"]))
    separator = draw(st.sampled_from(["?", "?a=1&", "?a=1;"]))
    key = draw(st.sampled_from(["key", "api_key", "password", "sig", "x"]))
    query = f"{separator}{key}={secret}" if not login or draw(st.booleans()) else ""
    return f"{scheme}{slashes}{login}{host}{path}{query}{draw(st.sampled_from(['', ',b', '/', ' ']))}"
