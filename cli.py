"""``python cli.py`` from a checkout is ``residual-lab``, whether it is installed or not."""

import os
import sys
from pathlib import Path

from residual_lab.cli import main

if __name__ == "__main__":
    # Runs are processes of their own, started from any folder: they must find the package too.
    before = [path for path in [os.environ.get("PYTHONPATH")] if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parent), *before])
    sys.exit(main())
