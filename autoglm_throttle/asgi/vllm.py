"""Adapts the middleware to a vLLM server that it runs in: capacity, paths, identity, priority, its own 503.

vLLM is recognised by the state of its app. Its packages are never imported, and its objects differ between
versions: every read is checked, and a value that cannot be used leaves the default in force.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import anyio

from autoglm_throttle.asgi.scope import App, Message, Receive, Scope, Send, attribute_to_throttle, permit_of
from autoglm_throttle.gpu.scrape.engines import parse_engine
from autoglm_throttle.gpu.scrape.exposition import Series
from autoglm_throttle.settings import ErrorStyle, MetricsExport, RoutePolicy, Settings, SettingSource
from autoglm_throttle.types import EngineCapacity, GpuSample, Outcome

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from autoglm_throttle.admission.permit import Permit
    from autoglm_throttle.throttle import Throttle
    from autoglm_throttle.types import Clock

# vLLM's log shows its own loggers and those below them, and of others only warnings.
_log = logging.getLogger("vllm.autoglm_throttle")

# Paths of probes and pages, which no engine works on.
EXEMPT: Final = (
    *("/health", "/metrics", "/ping", "/version", "/v1/models", "/load"),
    *("/docs", "/redoc", "/openapi.json", "/kv_event_sources", "/is_scaling_elastic_ep"),
)
EXEMPT_PREFIXES: Final = ("/metrics",)  # vLLM mounts the exporter at every path that begins so

# Paths that free or manage capacity: to reject them would keep the service full.
FREEING: Final = ("/v1/responses/{id}/cancel", "/inference/v1/abort_requests", "/scale_elastic_ep")

# Paths that take time of the CPU alone: charged, without a slot of the engine.
_RENDERED: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
CHEAP: Final = (
    *("/tokenize", "/detokenize", "/v1/messages/count_tokens"),
    *(f"{path}/{form}" for path in _RENDERED for form in ("render", "derender")),
)

# Paths of engine work beside /v1/, whose clients expect OpenAI's errors, too.
OPENAI: Final = (
    *("/invocations", "/inference/v1/generate", "/generative_scoring"),
    *("/pooling", "/classify", "/score", "/rerank", "/v2/embed", "/v2/rerank"),
)

PRIORITY_FIELD: Final = b"x-vllm-priority"  # Lower is earlier; it takes precedence over the body
GAUGES: Final = (
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total"),
)

# In an event: the engine gave the request up, or rejected it after the response had begun. A quotation mark
# of a generated text would have a backslash in front.
_ABORTED: Final = b'"finish_reason":"abort"'
_REJECTED: Final = b'"code": 503'


class VllmServer:
    """One process of a vLLM server: reads its configuration once, and its engine at any time.

    It adapts the throttle, which must not have admitted a request.

    Args:
        state: the state of vLLM's app.
        throttle: the throttle of the middleware.
    """

    def __init__(self, state: Any, throttle: Throttle) -> None:  # noqa: ANN401 - of a foreign package
        self._state = state
        self.throttle: Throttle = throttle
        self._collector: Collector | None = None
        self._faults: list[str] = []
        self._unfinished_failed = False
        scheduler, parallel = "vllm_config.scheduler_config.", "vllm_config.parallel_config."
        # API servers of one engine: each has its own limits, and counts its own requests.
        processes = self._number(parallel + "_api_process_count", 1) or 1
        is_local = self._read(parallel + "local_engines_only") is True
        ranks = self._number(parallel + "data_parallel_size" + "_local" * is_local, 1) or 1
        slots = self._number(scheduler + "max_num_seqs", 1)
        active = self._number(scheduler + "max_num_active_seqs", 1)
        queued = self._number(scheduler + "max_num_queued_reqs", 0)
        if slots is not None:
            slots = max(1, min(slots, active or slots) * ranks // processes)
        most = math.inf if queued is None else max(1, queued // processes)
        self.capacity: EngineCapacity = EngineCapacity(slots, most, self.unfinished, processes)
        policy = self._read(scheduler + "policy")
        self.by_priority: bool = policy == "priority"
        if self._faults:
            faults = "; ".join(self._faults)
            _log.warning("autoglm_throttle: vLLM has no usable value of %s; defaults are in force", faults)
        settings = self._settings(throttle.settings)
        sources = []
        if settings.source_of("gpu") is SettingSource.DEFAULT:
            sources.append(VllmProvider(self.capacity, throttle.admission.parts.settlement.clock))
        throttle.adopt_engine(self.capacity, settings, sources)

    def start(self) -> None:
        """Write the limits to vLLM's log, and add our metrics to those that it serves."""
        _log.info("%s", self._start_line())
        # Several API servers serve only metrics that are kept in files.
        in_files = self.capacity.processes > 1 or "PROMETHEUS_MULTIPROC_DIR" in os.environ
        if in_files or self.throttle.settings.observe.metrics is MetricsExport.OFF:
            return
        try:
            from prometheus_client import REGISTRY

            # Of a layer above, by name.
            collector = import_module("autoglm_throttle.observe").collector(self.throttle)
            REGISTRY.register(collector)
            self._collector = collector
        except Exception as error:  # noqa: BLE001 - a foreign registry, which may have such metrics already
            _log.warning("autoglm_throttle adds no metrics to those of vLLM: %.200s", error)

    def stop(self) -> None:
        """Remove our metrics again."""
        if self._collector is not None:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(self._collector)
            self._collector = None

    def _start_line(self) -> str:
        capacity, settings = self.capacity, self.throttle.settings
        limit = self.throttle.admission.parts.settlement.limiter.limit
        slots = "an unknown number of" if capacity.slots is None else capacity.slots
        share = f", as one of {capacity.processes} API servers" if capacity.processes > 1 else ""
        return (
            f"autoglm_throttle is in front of vLLM{share}: the engine runs {slots} sequences, at most "
            f"{limit:g} requests are in flight; IDENTITY={settings.callers.identity}, "
            f"USER_LIMIT={settings.text_of('user_limit')}, "
            f"priorities {'are passed to the scheduler' if self.by_priority else 'order the queue'}"
        )

    def unfinished(self) -> int:
        """Return the requests of this process that the engine has not finished; 0 if it cannot be read."""
        try:
            count = self._state.engine_client.get_num_unfinished_requests()
            if type(count) is int and count >= 0:
                return count
            fault = repr(count)
        except Exception as error:  # noqa: BLE001 - of a foreign package
            fault = repr(error)
        if not self._unfinished_failed:
            self._unfinished_failed = True
            _log.warning("autoglm_throttle: vLLM does not count its requests: %.200s", fault)
        return 0

    def _read(self, path: str) -> object:
        """Return a value below the state; None if it is absent or cannot be read."""
        try:
            return attrgetter(path)(self._state)
        except AttributeError:  # of another version
            return None
        except Exception as error:  # noqa: BLE001 - of a foreign package
            self._faults.append(f"{path} ({error!r:.100})")
            return None

    def _number(self, path: str, least: int) -> int | None:
        value = self._read(path)
        if value is None or (type(value) is int and value >= least):
            return value
        self._faults.append(f"{path} ({value!r:.100})")
        return None

    def _settings(self, given: Settings) -> Settings:
        """Return settings with defaults that suit the server; what the user has set stays."""

        def is_unset(name: str) -> bool:
            return given.source_of(name) is SettingSource.DEFAULT

        callers, rates, gpu = given.callers, given.rates, given.gpu
        own = [RoutePolicy(path, exempt=True, name=f"vllm {path}") for path in FREEING]
        if is_unset("exempt_paths"):
            own += [RoutePolicy(path, exempt=True, name=f"vllm {path}") for path in EXEMPT]
        if is_unset("identity"):
            callers = callers.model_copy(update={"identity": "bearer"})
        errors = ErrorStyle.OPENAI if is_unset("errors") else None
        own += [RoutePolicy(path, errors=errors, name=f"vllm {path}") for path in OPENAI]
        for path in CHEAP:
            in_api = path.startswith("/v1/")
            own.append(RoutePolicy(path, slot="none", errors=None if in_api else errors, name=f"vllm {path}"))
        if is_unset("workers") and not given.fleet.fleet:
            rates = rates.model_copy(update={"workers": self.capacity.processes})
        slots = self.capacity.slots
        if slots is not None and is_unset("gpu_queue_target"):
            # What always waits inside is no load: only twice as much is.
            target = max(gpu.gpu_queue_target, int(2 * (self.capacity.ceiling - slots)))
            gpu = gpu.model_copy(update={"gpu_queue_target": target})
        groups = {"callers": callers, "rates": rates, "gpu": gpu}
        return given.model_copy(update={**groups, "routes": (*given.routes, *own)})


class VllmProvider:
    """Reads queue and cache of the engine in this process, on the sampler's thread.

    The metrics of several API servers lie in files that they share: of those only the own requests are known.
    """

    name: str = "vllm"
    min_interval_s: float = 0.0

    def __init__(self, capacity: EngineCapacity, clock: Clock) -> None:
        self._capacity = capacity
        self._clock = clock

    def read(self) -> Sequence[GpuSample]:
        """Return one row."""
        count, slots = self._capacity.unfinished(), self._capacity.slots
        row = None if self._capacity.processes > 1 else self._reported()
        if row is None:
            row = GpuSample(device="", index=0, taken_at_s=self._clock(), source=self.name, kind="engine")
        row = replace(row, device=self.name)
        if slots is not None:
            row = replace(row, running=min(count, slots), queued=max(0, count - slots))
        return [row]

    def _reported(self) -> GpuSample | None:
        """Return the row of vLLM's own metrics; None if it has none."""
        try:
            from prometheus_client import REGISTRY

            # Of all families the registry would make 1.5 ms of work.
            families = REGISTRY.restricted_registry(GAUGES).collect()
            series = [Series(one.name, one.labels, one.value) for each in families for one in each.samples]
            return parse_engine(series, "vllm", source=self.name, now=self._clock(), place="localhost:0")
        except Exception:  # noqa: BLE001 - a foreign registry
            return None

    def close(self) -> None:
        """Do nothing: there is no driver."""

    def reset_after_fork(self) -> None:
        """Do nothing: there are no handles."""


class VllmApp:
    """Runs vLLM's app: passes the priority of each request on, and reads overload and cuts from responses."""

    def __init__(self, app: App, server: VllmServer) -> None:
        self.app: App = app  # as of any middleware: its routes are read
        self._by_priority = server.by_priority
        self._throttle = server.throttle
        self._next_start_s = -math.inf  # When the engine may get the next request under overload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        permit = permit_of(scope)
        if scope["type"] == "http":
            if self._by_priority:  # a client must not state it
                headers = [field for field in scope["headers"] if field[0] != PRIORITY_FIELD]
                if permit is not None:
                    headers.append((PRIORITY_FIELD, b"%d" % permit.demand.priority))
                scope["headers"] = headers
            if permit is not None:
                send = VllmResponse(send, permit, scope, self._throttle).send
                if permit.slot and (wait_s := self._start_in_s()):
                    await anyio.sleep(wait_s)
        await self.app(scope, receive, send)

    def _start_in_s(self) -> float:
        """Reserve the next start in the engine, and return the seconds until it."""
        settlement = self._throttle.admission.parts.settlement
        now = settlement.clock()
        start_s = max(now, self._next_start_s)
        self._next_start_s = start_s + settlement.limiter.start_interval_s
        return start_s - now


class VllmResponse:
    """The response to one request: a rejection by the engine gets a time, and a cut is no success."""

    __slots__ = ("_is_events", "_is_incomplete", "_permit", "_scope", "_send", "_throttle")

    def __init__(self, send: Send, permit: Permit, scope: Scope, throttle: Throttle) -> None:
        self._send = send
        self._permit = permit
        self._scope = scope
        self._throttle = throttle
        self._is_events = self._is_incomplete = False

    def send(self, message: Message) -> Awaitable[None]:
        """Forward a message."""
        kind = message["type"]
        if kind == "http.response.body":
            body = message.get("body")
            if self._is_events and body and (_ABORTED in body or _REJECTED in body):
                self._is_incomplete = True
            if self._is_incomplete and not message.get("more_body"):
                attribute_to_throttle(self._scope)
                self._permit.settle(Outcome.NEUTRAL)
        elif kind == "http.response.start":
            if message["status"] == 503:
                self._is_incomplete = True
                attribute_to_throttle(self._scope)  # a breaker does not count it, either
                message = self._with_time(message)
            else:
                headers = message.get("headers")
                self._is_events = isinstance(headers, list) and any(  # what can be read once is not read here
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in headers
                )
        return self._send(message)

    def _with_time(self, message: Message) -> Message:
        headers = list(message.get("headers") or ())
        if any(name == b"retry-after" for name, _ in headers):
            return message
        wait_s = self._throttle.admission.retry_after_s(self._permit.demand)
        headers += [
            (b"retry-after", b"%d" % max(1, math.ceil(wait_s))),
            (b"retry-after-ms", b"%d" % max(1, math.ceil(wait_s * 1e3))),
        ]
        return {**message, "headers": headers}
