"""``python -m tests.training.two_processes DIR...``: execute several run directories, one by one.

Lightning starts the second process with the first run; the rest go on in the same two.
"""

import sys

from residual_lab import run
from residual_lab.run_directory import RunDirectory
from residual_lab.training.execution import execute
from residual_lab.training.stopping import StopSignals

if __name__ == "__main__":
    for path in sys.argv[1:]:
        directory = RunDirectory.open(path)
        first = run.process_rank() == 0
        execute(directory, devices=None, first=first, signals=StopSignals(), console=None)
