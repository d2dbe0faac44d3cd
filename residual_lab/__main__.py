"""``python -m residual_lab`` is ``residual-lab``."""

import sys

from residual_lab.cli import main

sys.exit(main())
