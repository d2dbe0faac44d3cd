"""``residual-lab train``: one run, or a Hydra multirun."""

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from residual_lab.config.composition import compose_with, conf_directory, started_hydra
from residual_lab.config.overrides import refused
from residual_lab.config.schema import Config
from residual_lab.errors import ConfigError
from residual_lab.launch import DIVERGED, FAILED, FINISHED, REFUSED, execute, why_stopped
from residual_lab.run_directory import RunDirectory

DESCRIPTION = """\
Train one configuration. The run is a directory in run.dir (default: runs) whose name ends in
a hash of all that can change its result: the same command again resumes it, or says that it
is finished. With -m: every combination of the values, as Hydra's multirun."""

EXAMPLES = """\
examples:
  residual-lab train residual=laurel_rw+lr
  residual-lab train residual=laurel_lr residual.rank=8 model.layers=12 optim.lr=1e-3
  residual-lab train -m residual=plain,laurel_rw seed=0,1,2
  residual-lab train -m residual=plain,laurel_rw hydra/launcher=joblib hydra.launcher.n_jobs=2
  residual-lab train --cfg job model=gpt2_124m     # show the configuration, train nothing"""


def main(arguments: list[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    if (options.package or options.resolve) and not options.cfg:
        given = "--resolve" if options.resolve else f"--package {options.package}"
        raise ConfigError(f"{given}: goes with --cfg, which shows the configuration; add --cfg job")
    if options.cfg or options.info:
        return _show(options)
    if options.multirun or "hydra.mode=MULTIRUN" in options.overrides:
        return _sweep(options)
    with started_hydra(options.config_dir) as hydra:
        config = compose_with(hydra, options.overrides, options.config_name)
    return train(config)


def train(config: Config) -> int:
    """Run, or resume, the directory of ``config``; return the exit status of the run."""
    folder = Path(config.run.dir)
    made = not folder.exists()
    run = RunDirectory.create(config)
    status = run.status
    if status in ("finished", "diverged"):
        print(f"{status}: {run.path}")
        _summary(run.path)
        return FINISHED if status == "finished" else DIVERGED
    if config.hardware.needs_launcher:
        return _on_several_hosts(run)
    exit_status = execute(run.path)
    if exit_status in (FINISHED, DIVERGED):
        _summary(run.path)
    elif exit_status > 128:
        why = why_stopped(exit_status)
        print(f"unfinished: {run.path}: {why}; the same command resumes it", file=sys.stderr)
    elif exit_status == REFUSED:  # the run has said why
        if run.remove_if_never_begun() and made:
            with suppress(OSError):  # another run is in it by now
                folder.rmdir()
    else:
        problem = (run.result or {}).get("error") if exit_status == FAILED else None
        print(f"failed: {run.path}{f': {problem}' if problem else ''}", file=sys.stderr)
    return exit_status


def _on_several_hosts(run: RunDirectory) -> int:
    """Nothing is trained: the processes of other hosts are not ours to start."""
    hardware = run.config.hardware
    nodes = hardware.nodes
    each = "DEVICES" if hardware.devices == "auto" else str(hardware.devices)  # of one host
    start = f"--nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint HOST"
    print(f"made: {run.path}; start it on {nodes} hosts, HOST being one of them, with one of")
    print(f"torchrun {start} -m residual_lab.run {run.path}  # on each")
    print(f"srun --nodes {nodes} --ntasks-per-node {each} python -m residual_lab.run {run.path}")
    return FINISHED


def _sweep(options: argparse.Namespace) -> int:
    from residual_lab.sweep import run_sweep

    status, paths = run_sweep(options.overrides, options.config_dir, options.config_name)
    if any(RunDirectory.open(path).result for path in paths):
        _compare(paths)
    return status


def _compare(paths: list[Path]) -> None:
    from residual_lab.tables import compare, load_runs, render

    render(compare(load_runs(paths)))


def _summary(path: Path) -> None:
    from residual_lab.tables import render, summary

    render(summary(path))


def _show(options: argparse.Namespace) -> int:
    """Hydra's own views of what it composes; nothing is validated and nothing runs."""
    name, overrides = options.config_name, options.overrides
    with started_hydra(options.config_dir) as hydra:
        problems, _ = refused(hydra, overrides, name)
        if problems:
            raise ConfigError(*problems)
        if options.info:
            hydra.show_info(options.info, name, overrides)
        else:
            hydra.show_cfg(name, overrides, options.cfg, options.package, options.resolve)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="residual-lab train",
        description=f"{DESCRIPTION}\n\n{_groups()}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="GROUP=CHOICE too")
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep over comma lists")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a folder of your own groups")
    parser.add_argument("--config-name", "-cn", metavar="NAME", default="config")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"], help="show, do not train")
    parser.add_argument("--package", "-p", metavar="KEY", help="of --cfg: this section only")
    parser.add_argument("--resolve", action="store_true", help="of --cfg: fill in references")
    parser.add_argument(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
        help="how Hydra came to this configuration",
    )
    return parser


def _groups() -> str:
    """The groups and their choices, read from the names of files."""
    folders = sorted(path for path in conf_directory().iterdir() if path.is_dir())
    width = max(len(folder.name) for folder in folders)
    lines = ["groups (`residual-lab list` describes the choices):"]
    for folder in folders:
        choices = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        lines.append(f"  {folder.name:<{width}}  {choices}")
    return "\n".join(lines)
