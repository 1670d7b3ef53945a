"""`python -m cluster.observability k8s/monitoring` writes what is kept there."""

import sys
from pathlib import Path

from cluster.observability.files import write_kubernetes

write_kubernetes(Path(sys.argv[1]))
