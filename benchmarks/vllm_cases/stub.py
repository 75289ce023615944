"""vLLM's own app over a stub of its engine, for the interpreter of vLLM.

Run: ``python stub.py MODEL PORT ...``; further arguments are those of ``vllm serve``. The stub answers
a token every few milliseconds, and rejects as the engine does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

TOKEN_S = 0.005
WORD = " word"


class StubEngine:
    """An engine client whose every answer is as many words as the request allows."""

    errored = False
    dead_error = RuntimeError("dead")
    is_running = True
    is_stopped = False

    def __init__(self, config: Any) -> None:
        from vllm.renderers import renderer_from_config
        from vllm.v1.engine.input_processor import InputProcessor

        self.vllm_config = config
        self.model_config = config.model_config
        self.renderer = renderer_from_config(config)
        self.input_processor = InputProcessor(config, self.renderer)
        self.unfinished = 0
        self.priorities: list[int] = []

    def get_num_unfinished_requests(self) -> int:
        return self.unfinished

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:  # noqa: ARG002 - as vLLM calls it
        from vllm.exceptions import QueueOverflowError

        most = self.vllm_config.scheduler_config.max_num_queued_reqs
        if most is not None and self.unfinished + n > most:
            raise QueueOverflowError

    async def generate(
        self,
        prompt: Any,  # noqa: ARG002 - as vLLM calls it
        sampling_params: Any,
        request_id: str,
        **more: Any,
    ) -> AsyncIterator[Any]:
        from vllm.outputs import CompletionOutput, RequestOutput
        from vllm.sampling_params import RequestOutputKind

        self.unfinished += 1
        try:
            is_delta = sampling_params.output_kind is RequestOutputKind.DELTA
            count = sampling_params.max_tokens or 16
            # The priority comes back as the first word.
            words = [f"{more.get('priority')}", *[WORD] * (count - 1)]
            for number in range(1, count + 1):
                await asyncio.sleep(TOKEN_S)
                is_last = number == count
                if not (is_delta or is_last):
                    continue
                text = words[number - 1] if is_delta else "".join(words)
                output = CompletionOutput(
                    index=0,
                    text=text,
                    token_ids=[5] if is_delta else [5] * count,
                    cumulative_logprob=None,
                    logprobs=None,
                    finish_reason="length" if is_last else None,
                )
                yield RequestOutput(request_id, None, [5, 6], None, [output], finished=is_last)
        finally:
            self.unfinished -= 1

    async def is_tracing_enabled(self) -> bool:
        return False

    async def check_health(self) -> None:
        pass

    async def do_log_stats(self) -> None:
        pass

    async def abort(self, request_id: Any) -> None:
        pass

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)


async def serve(model: str, port: str, *more: str) -> None:
    """Run the server."""
    import uvicorn
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:  # of 0.33
        from vllm.entrypoints.common.cli_args import make_arg_parser
    options = ["--model", model, "--load-format", "dummy", "--max-model-len", "2048", "--enforce-eager"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([*options, *more])
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    engine = StubEngine(config)
    app = build_app(args, ("generate",), config.model_config)
    await init_app_state(engine, app.state, args, ("generate",))
    await uvicorn.Server(uvicorn.Config(app, port=int(port), log_level="warning")).serve()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
