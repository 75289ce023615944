"""The load lab: makes load, replays traces, simulates a service, counts what became of each request.

It asks one question: what does this service do to each priority under this shape of load?
Benchmarks of models themselves, token by token, are left to GuideLLM or ``vllm bench serve``.
"""
