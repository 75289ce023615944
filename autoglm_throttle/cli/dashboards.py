"""``dashboards``: writes the files for Prometheus and Grafana, with the thresholds of the settings."""

from __future__ import annotations

import argparse
from pathlib import Path

from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, add_sources, load, to_stderr, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder to write into; it is made")
    parser.add_argument(
        "--job", default="autoglm_throttle", help="name of the scrape job (default: autoglm_throttle)"
    )
    parser.add_argument(
        "--runbook", metavar="URL", help="address of the runbook in the alerts (default: docs/operating.md)"
    )
    add_sources(parser)


def run(args: argparse.Namespace) -> int:
    """Write the files and print their names."""
    from autoglm_throttle.observe import dashboards
    from autoglm_throttle.observe.rules import RUNBOOK

    texts = {
        "prometheus-rules.yml": dashboards.rules_file(load(args), args.runbook or RUNBOOK),
        "prometheus.yml": dashboards.scrape_file(args.job),
        "grafana.json": dashboards.grafana_file(),
    }
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (args.folder / name).write_text(text, "utf-8")
    except OSError as error:
        to_stderr(f"dashboards: {args.folder} cannot be written: {error.strerror}\n")
        return PROBLEM_FOUND
    write("\n".join(str(args.folder / name) for name in texts))
    return EXIT_OK
