"""Supervisor of one uvicorn process: it starts another as soon as the one before has ended.

Usage: ``python -m benchmarks.socket_cases.supervised PORT APP``
"""

from __future__ import annotations

import subprocess
import sys


def main(port: str, app: str) -> None:
    """Serve until this process is killed, with its whole process group."""
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--port",
        port,
        "--log-level",
        "info",
        "--no-access-log",
        app,
    ]
    while True:
        subprocess.run(command, check=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
