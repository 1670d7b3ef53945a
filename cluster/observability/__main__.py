"""Command `python -m agent_rft.cluster.observability`: prints alerts.yaml with links to your published runbook."""

import argparse
import sys

from agent_rft.cluster.observability.monitoring_files import prometheus_rule

parser = argparse.ArgumentParser(
    prog="python -m agent_rft.cluster.observability",
    description="Print the alert rules as a PrometheusRule in which each alert links to your runbook.",
)
parser.add_argument("--runbook-url", required=True, help="URL of your published RUNBOOK.md")
sys.stdout.write(prometheus_rule(parser.parse_args().runbook_url))
