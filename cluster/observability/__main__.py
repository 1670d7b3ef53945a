"""`python -m cluster.observability` prints the alerts and dashboards as Kubernetes objects.

It makes `k8s/monitoring/alerts-and-dashboards.yaml`, and with `--runbook` `k8s/monitoring/RUNBOOK.md`.
"""

import argparse
import sys

from cluster.observability.alerts import runbook
from cluster.observability.files import kubernetes_manifest

parser = argparse.ArgumentParser(
    prog="python -m cluster.observability",
    description="Print the alerts (PrometheusRule) and dashboards (ConfigMap) as a Kubernetes manifest.",
)
parser.add_argument("--runbook", action="store_true", help="print RUNBOOK.md instead: what to do when an alert fires")
parser.add_argument("--runbook-url", help="address at which you publish RUNBOOK.md; each alert links to its section")
options = parser.parse_args()
sys.stdout.write(runbook() if options.runbook else kubernetes_manifest(options.runbook_url))
