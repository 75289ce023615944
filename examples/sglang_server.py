"""SGLang with the throttle in front: it has no flag for a middleware, so its app is wrapped before it starts.

One tokenizer worker, as by default:

    python examples/sglang_server.py --model-path MODEL --enable-metrics

Several workers import the app again by its path, which a variable names:

    export SGLANG_HTTP_SERVER_APP_PATH=examples.sglang_server:app
    python -m sglang.launch_server --model-path MODEL --tokenizer-worker-num 2

SGLang keeps its figures in another process, so set AUTOGLM_THROTTLE_INFLIGHT_MAX a little above
--max-running-requests, and AUTOGLM_THROTTLE_GPU=sglang:http://127.0.0.1:30000. Written for SGLang 0.5.23; its
command is not part of our tests.
"""

import os
import sys
from types import ModuleType

from starlette.types import ASGIApp

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware

# What the environment does not set: callers by key, and paths of probes and of what frees capacity.
DEFAULTS = {
    "AUTOGLM_THROTTLE_IDENTITY": "bearer",
    "AUTOGLM_THROTTLE_EXEMPT_PATHS": (
        "/health,/health_generate,/ping,/metrics,/model_info,/server_info,/v1/models,/v1/loads,/abort_request"
    ),
}


def throttled(server: ModuleType) -> ASGIApp:
    """Return the app of SGLang's server module, with the middleware around it."""
    throttle = Throttle(Settings.from_env(DEFAULTS | dict(os.environ)))
    server.app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return server.app  # type: ignore[no-any-return]


def server_module() -> ModuleType:
    """Import SGLang's HTTP server, which takes seconds."""
    from sglang.srt.entrypoints import http_server

    return http_server  # type: ignore[no-any-return]


def main() -> None:
    """Start the server with the arguments of ``sglang.launch_server``."""
    from sglang.srt.server_args import prepare_server_args

    server = server_module()
    throttled(server)
    server.launch_server(prepare_server_args(sys.argv[1:]))


def __getattr__(name: str) -> ASGIApp:
    """Return the app to workers that import it by its path; importing this module alone needs no SGLang."""
    if name != "app":
        raise AttributeError(name)
    return throttled(server_module())


if __name__ == "__main__":
    main()
