"""Starts the middleware and answers one request; started by `benchmarks.start`, one process for each mode.

Each call of ``os.getppid`` closes one callgrind profile. The driver uses public names alone, because the same
file also drives older commits; the app and its request are those of the checkout's `instructions_driver`.

Modes: ``modules`` prints the modules of others that a start loads; ``start FILE`` imports the modules named
in the file, then starts; ``steps FILE`` the same with a mark after each part of the start; ``seconds`` prints
the CPU seconds from the reading of the settings to the response; ``check`` those of the complete command.
"""

import importlib
import os
import sys
import time

from benchmarks.instructions_driver import bare, receive, run, scope, send

OWN = ("autoglm_throttle", "benchmarks", "__main__")


def import_others(path: str) -> None:
    """Import the modules of others; a name that is no importable module is left out."""
    with open(path) as file:  # noqa: PTH123 - pathlib is one of the modules that are counted
        names = file.read().split()
    for name in names:
        try:  # noqa: SIM105 - contextlib is one of them, too
            importlib.import_module(name)
        except ImportError:
            pass


def plain() -> None:
    """Start as the README does."""
    from autoglm_throttle import ThrottleMiddleware

    run(ThrottleMiddleware(bare)(scope(0), receive, send))


def steps() -> None:
    """Start in four marked parts: imports, settings, throttle, first request."""
    from autoglm_throttle import Settings, Throttle, ThrottleMiddleware

    os.getppid()
    settings = Settings.from_env()
    os.getppid()
    app = ThrottleMiddleware(bare, throttle=Throttle(settings))
    os.getppid()
    run(app(scope(0), receive, send))


def seconds() -> float:
    """Return the CPU seconds of a start, its imports left out."""
    from autoglm_throttle import Settings, Throttle, ThrottleMiddleware

    begun = time.process_time()
    app = ThrottleMiddleware(bare, throttle=Throttle(Settings.from_env()))
    run(app(scope(0), receive, send))
    return time.process_time() - begun


def check() -> float:
    """Return the CPU seconds of ``autoglm-throttle check``, the interpreter included."""
    import contextlib
    import io

    from autoglm_throttle.cli import main as command

    with contextlib.redirect_stdout(io.StringIO()):
        if command(["check"]) != 0:
            raise RuntimeError("the check found a problem")
    return time.process_time()


def main() -> None:
    """Run one mode."""
    mode, *files = sys.argv[1:]
    for path in files:
        import_others(path)
        os.getppid()
    if mode in {"seconds", "check"}:
        print(seconds() if mode == "seconds" else check())
    elif mode == "steps":
        steps()
    else:
        plain()
    os.getppid()
    if mode == "modules":
        time.sleep(1.0)  # the thread that samples the GPU imports its client after the response
        print("\n".join(name for name in sys.modules if name.partition(".")[0] not in OWN))


if __name__ == "__main__":
    main()
