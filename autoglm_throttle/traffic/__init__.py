"""Load tests: generate load, replay traces, and classify the result of each request.

They measure the effect of a load shape on each priority.
Benchmarks of models themselves, token by token, are left to GuideLLM or ``vllm bench serve``.
"""
