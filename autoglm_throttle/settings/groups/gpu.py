"""Settings of GPU telemetry, of verdicts on busy devices, and of memory quotas; the parser of ``GPU``."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import (
    FieldType,
    FieldTypeError,
    choice,
    listed,
    number,
    whole,
    word,
)
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.settings.problems import masked_url, repr_for_user
from autoglm_throttle.types import AggregateMode, MissingTelemetryMode, Priority

_ENGINES: Final = ("vllm", "sglang", "trtllm", "tgi", "triton")
SCRAPED: Final = ("dcgm", "prometheus", *_ENGINES)  # kinds that are read over HTTP
LOCAL: Final = ("auto", "nvml", "none")  # kinds without a URL or file
ENGINES: Final = frozenset(_ENGINES)  # sources that report the queue of an engine
KINDS: Final = (*LOCAL, *SCRAPED, "fake")
ALLOWED_ITEMS: Final = f"auto, nvml, {':URL, '.join(SCRAPED)}:URL, fake:FILE, or none alone"
# A comma before the next item; other commas belong to a URL or the name of a file.
_NEXT: Final = rf"(?i),(?=\s*(?:{'|'.join(KINDS)})\s*(?:[:,]|\Z))"
_PORTS: Final = {"http": 80, "https": 443}


class ScrapeUrl(NamedTuple):
    """The parts of a URL."""

    tls: bool
    host: str
    port: int
    path: str = ""  # as it is sent; empty or / if the URL has none
    query: str = ""  # as it is sent, without the question mark
    username: str | None = None
    password: str | None = None

    @property
    def place(self) -> str:
        """``host:port``, the only part that a name or a label may show."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        # Path and query may hold secrets as the password does.
        return f"ScrapeUrl({self.place})"


GpuItem = tuple[str, ScrapeUrl | None, str]
"""One source: its kind, the URL of a kind in `SCRAPED`, the file of ``fake``."""


def split_items(text: str) -> list[str]:
    """Split a list at the commas before a known kind; blanks around the items are dropped."""
    return [part.strip() for part in re.split(_NEXT, text)]


def parse_items(items: Sequence[str]) -> tuple[GpuItem, ...]:
    """Parse the items of a list.

    Raises:
        ValueError: an item is wrong; the text lists all problems, without passwords.
    """
    read: dict[object, GpuItem] = {}
    faults: list[str] = []
    for text in items:
        try:
            kind, url, file = _item(text)
        except ValueError as error:
            faults.append(f"{repr_for_user(shown_item(text))}: {error}")
            continue
        # Another login does not make another source.
        key = (kind, file, url and (url.host, url.port, url.path.rstrip("/"), url.query))
        if key in read:
            faults.append(f"{repr_for_user(shown_item(text))} is listed twice")
        read[key] = kind, url, file
    faults = faults or list(_contradictions([kind for kind, _, _ in read.values()]))
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(read.values())


def shown_item(text: str) -> str:
    """Format an item without its password."""
    kind, colon, rest = text.strip().partition(":")
    return kind + colon + (rest if kind.strip().lower() == "fake" else masked_url(rest))


def _item(text: str) -> GpuItem:
    kind, colon, rest = (part.strip() for part in text.partition(":"))
    match kind.lower():
        case "fake" if not (rest and rest.isprintable()):
            raise ValueError("after fake comes the name of a file, such as :trace.csv")
        case "fake":
            return "fake", None, rest
        case kind if kind in SCRAPED and not colon:
            raise ValueError(f"after {kind} comes a URL, such as :http://127.0.0.1:8000")
        case kind if kind in SCRAPED:
            return kind, _url(rest), ""
        case kind if kind in LOCAL and colon:
            raise ValueError(f"after {kind} comes nothing")
        case kind if kind in LOCAL:
            return kind, None, ""
    raise ValueError("not a known source")


def _contradictions(kinds: Sequence[str]) -> Iterable[str]:
    if not kinds:
        yield "no source is named; write none for no source"
    if "none" in kinds and len(kinds) > 1:
        yield "none cannot be joined with other sources"
    if "auto" in kinds and {"nvml", "fake"} & set(kinds):
        yield f"auto can be joined with {', '.join(SCRAPED)} only"


def _url(text: str) -> ScrapeUrl:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        reason = "its host or port cannot be read; special characters in a password are written %2F"
        raise ValueError(reason) from None
    # First, since the errors below may quote a part of the URL: an unencoded password ends up in these parts.
    if parts.fragment or "@" in parts.path + parts.query or not text.isprintable() or " " in text:
        raise ValueError("'/', '?', '#', '@' and blanks in a password or a path must be percent-encoded")
    if parts.scheme not in _PORTS:
        raise ValueError("a URL begins with http:// or https://")
    if not parts.hostname or port == 0:
        raise ValueError("a URL names a host, and a port that is not 0")
    username, password = (part and unquote(part) for part in (parts.username, parts.password))
    path, query = (quote(part, safe="/%:?!$&'()*+,;=~") for part in (parts.path, parts.query))
    port = port or _PORTS[parts.scheme]
    return ScrapeUrl(parts.scheme == "https", parts.hostname, port, path, query, username, password)


RATIO: Final = number(0.01, 1, "share")
_MATCHERS: Final = (
    r"""(?:\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*("|')(?:(?!\1)[^\\]|\\.)*\1\s*(?:,|\Z))*"""
)
_MATCHER_EXAMPLE: Final = 'cluster="a"'


def stale_at_least_s(interval_s: float) -> float:
    """Return the default age in seconds from which a sample is stale: three intervals, at least 3 s."""
    return max(3.0 * interval_s, 3.0)


def _gpu_sources(raw: object) -> tuple[str, ...]:
    parts = split_items(raw) if isinstance(raw, str) else f.parts_of(raw)
    items = [part for part in parts if isinstance(part, str)]
    if len(items) < len(parts):
        raise FieldTypeError
    if any(len(split_items(item)) > 1 for item in items):
        raise FieldTypeError("an element of a list is one source")
    parse_items(items)
    pairs = [item.partition(":")[::2] for item in items]
    return tuple(":".join(filter(None, (kind.strip().lower(), rest.strip()))) for kind, rest in pairs)


def _device(raw: object) -> str:
    """Parse an entry as in CUDA_VISIBLE_DEVICES."""
    index = isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= 9999
    return str(_DEVICE_TEXT.parse(str(raw) if index else raw))


def _label_matchers(raw: object) -> str:
    """Parse matchers separated by commas, with or without braces around them."""
    if not isinstance(raw, str) or not raw.isprintable():
        raise FieldTypeError
    text = raw.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    if not re.fullmatch(_MATCHERS, text):
        raise FieldTypeError(f"for example {_MATCHER_EXAMPLE}")
    return text.rstrip(", ")


GPU_SOURCES: Final = FieldType(
    f"a list, separated by commas, of {ALLOWED_ITEMS}",
    "auto,vllm:http://127.0.0.1:8000",
    _gpu_sources,
    text=",".join,
    public=lambda items: ",".join(map(shown_item, items)),
)
_DEVICE_TEXT: Final = word(
    r"[0-9]{1,4}|GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,99}|MIG-[0-9A-Za-z][0-9A-Za-z/-]{0,99}",
    "NVML indexes, or UUIDs that start with GPU- or MIG-",
    "0,1",
    reason="neither an index nor a UUID",
)
DEVICE: Final = FieldType(_DEVICE_TEXT.allowed, _DEVICE_TEXT.example, _device)
LABEL_MATCHERS: Final = FieldType(
    'label matchers of PromQL such as cluster="a",Hostname=~"gpu-.*"', _MATCHER_EXAMPLE, _label_matchers
)
PRESSURE_TERM: Final = word(
    "queue|kv|memory|latency|compute", "queue, kv, memory, latency, compute", "queue,kv", lower=True
)
PRECISION: Final = word(
    r"[a-z0-9][a-z0-9._-]{0,31}",
    "labels such as fp16, of at most 32 letters, digits, dots, dashes and underscores",
    "fp16,int8",
    lower=True,
)


class GpuSettings(Group):
    """Settings of GPU telemetry."""

    environment: ClassVar[str] = (
        "GPU* GPU_DEVICES GPU_SELECTOR GPU_REQUIRED SAMPLE_INTERVAL_S* SAMPLE_ADAPTIVE GPU_AGGREGATE "
        "GPU_UNKNOWN GPU_MEMORY_TARGET"
    )

    gpu: Annotated[tuple[str, ...], GPU_SOURCES] = ("auto",)
    """Where telemetry comes from, joined if several: the NVIDIA driver (nvml), dcgm-exporter, a Prometheus
    server, the engines vLLM, SGLang, TensorRT-LLM (trtllm), TGI and Triton, a replayed file, nowhere; auto
    tries nvml."""
    gpu_devices: Annotated[tuple[str, ...], listed(DEVICE)] = ()
    """Devices of the NVIDIA driver (auto, nvml) that count; not set: those of CUDA_VISIBLE_DEVICES, else all.
    Scraped or replayed sources report all their devices. [convention]"""
    gpu_selector: Annotated[str, LABEL_MATCHERS] = ""
    """Series of a prometheus: source that count; not set: every device that the server knows."""
    gpu_required: Annotated[bool, f.FLAG] = False
    """Whether a start fails unless each source that GPU names delivers data within 5 s."""
    sample_interval_s: Annotated[float, number(0.2, 60, "s")] = 1.0
    """Time from one sample to the next. [founding figure]"""
    sample_adaptive: Annotated[bool, f.FLAG] = False
    """Whether an idle service is sampled less often: 10 times the interval below 30 % load, 5 times below 70
    %, at most every sample_interval_max_s. [founding figure]"""
    gpu_aggregate: Annotated[AggregateMode, choice(AggregateMode)] = AggregateMode.WEIGHTED
    """How several devices become one number: weighted by memory, mean, or the hottest."""
    gpu_unknown: Annotated[MissingTelemetryMode, choice(MissingTelemetryMode)] | None = None
    """Assumption once samples are missing: full rates, the last factor, factor 0.7, or factor 0. Not set:
    last under tiers, since a driver that hangs most often has a hung device; open under other policies."""
    gpu_memory_target: Annotated[float, number(0.1, 1, "share")] = 0.92
    """Share of device memory that may be full: the concurrency limiter learns the memory of a request and
    stays below it. [the free share of vLLM by default is the margin]"""
    sample_interval_max_s: Annotated[float, number(0.2, 600, "s")] = 10.0
    """Longest time from one sample to the next with SAMPLE_ADAPTIVE. [founding figure]"""
    gpu_stale_after_s: Annotated[float, number(0.2, 86_400, "s")] | None = None
    """Age from which a sample counts less and less; not set: 3 intervals, at least 3 s."""
    gpu_blind_after_s: Annotated[float, number(0.4, 86_400, "s")] = 30.0
    """Age from which a sample is ignored; at least twice the stale age."""
    gpu_forget_s: Annotated[float, number(1, 86_400, "s")] = 300.0
    """Time for which a device that a dcgm or prometheus source no longer lists counts as lost; then it is
    removed."""
    gpu_queue_target: Annotated[int, whole(1, 100_000, "requests")] = 5
    """Requests waiting inside each engine that count as a full load. [the utilization detector of the Gateway
    API inference extension]"""
    gpu_kv_target: Annotated[float, number(0.01, 1, "share")] = 0.8
    """Fill of the engines' key-value caches that counts as a full load. [the utilization detector of the
    Gateway API inference extension]"""
    gpu_pressure_terms: Annotated[tuple[str, ...], listed(PRESSURE_TERM)] = (
        *("queue", "kv", "memory", "latency"),
    )
    """Loads of which the largest is the pressure: requests waiting in the engines over gpu_queue_target,
    their caches over gpu_kv_target, without engines the fullest device over GPU_MEMORY_TARGET, P95 over
    SLO_S; compute is for models with batches of a fixed size."""

    @property
    def stale_after_s(self) -> float:
        """Age in seconds from which a sample is stale."""
        return self.gpu_stale_after_s or stale_at_least_s(self.sample_interval_s)


class VerdictSettings(Group):
    """Thresholds of verdicts on busy devices."""

    prefix: ClassVar[str] = "verdict_"

    power_stalled: Annotated[float, number(0, 1, "share")] = 0.30
    """Power as a share of its limit below which a busy device without progress is stalled. [a hung collective
    drew 70 W (NVIDIA/nccl#968); not yet calibrated on a device of ours]"""
    power_underfed: Annotated[float, number(0, 1, "share")] = 0.40
    """Power as a share of its limit below which a busy device with progress is underfed. [a steady vLLM drew
    320 of 700 W; not yet calibrated on a device of ours]"""
    sm_stalled: Annotated[float, number(0, 1, "share")] = 0.05
    """Share of the multiprocessors with work below which a busy device without progress is stalled. [one
    block on 132 of them is 0.008]"""
    sm_underfed: Annotated[float, number(0, 1, "share")] = 0.25
    """Share of the multiprocessors with work below which a busy device with progress is underfed. [the class
    'busy, low SM use' of KempnerPulse]"""
    stalled_s: Annotated[float, number(10, 3600, "s")] = 10.0
    """Time without progress after which a busy device is stalled; more where responses take longer."""


class QuotaSettings(Group):
    """Settings of memory quotas and the advice to the app."""

    environment: ClassVar[str] = "QUOTAS"

    quotas: Annotated[bool, f.FLAG] = False
    """Whether memory is reserved for important requests and the app gets advice on how to serve each request;
    a resource_policy in CONFIG_FILE or code turns it on."""
    precisions: Annotated[tuple[str, ...], listed(PRECISION)] = ()
    """Variants that the service has, the best first: under load less important requests are advised to use
    the last. A client may request a lesser one in the header X-Precision."""
    compute_priority: Annotated[Priority, f.PRIORITY] | None = None
    """The class passed to the engine; not set: that of each request."""
    gpu_memory_ratio: Annotated[float, RATIO] = 0.7
    """Share of the memory that requests can fill from which mid is rejected; high has GPU_MEMORY_TARGET.
    [founding figure]"""
    gpu_memory_ratio_low: Annotated[float, RATIO] = 0.5
    """The same for low; where gpu_memory_ratio is less, that counts."""
