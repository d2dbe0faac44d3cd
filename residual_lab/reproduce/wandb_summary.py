"""A table's copy in W&B: one run of its own in the group of the table's runs."""

import hashlib
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from residual_lab.config.schema import LoggerConfig
from residual_lab.reproduce.arguments import Asked
from residual_lab.tables.table import Table


def log_summary(
    asked: Asked, logger: LoggerConfig, folder: Path, table: Table, pictures: Sequence[Path]
) -> None:
    """Log the table and its pictures; the same table again goes to the same run.

    Offline, without a key, or where W&B cannot be reached it is written into ``folder``, in place
    of the last one, for ``wandb sync``.
    """
    import wandb

    from residual_lab.training.loggers import wandb_offline

    group = logger.group or f"{asked.table.name}-{asked.choices.scale}"
    identity = hashlib.sha256(f"{group}\n{asked.out.absolute()}".encode()).hexdigest()[:16]
    for earlier in folder.glob(f"wandb/offline-run-*-{identity}"):
        shutil.rmtree(earlier)
    start = partial(
        wandb.init,
        project=logger.project,
        entity=logger.entity,
        group=group,
        job_type="table",
        name=f"table {group}",
        id=identity,
        dir=folder,
        tags=list(logger.tags),
        config={"table": asked.table.name, "source": asked.table.source, "command": asked.command},
        settings=wandb.Settings(silent=True, console="off"),
    )
    if wandb_offline(logger):
        run = start(mode="offline")
    else:
        try:
            run = start(mode="online", resume="allow")
        except wandb.errors.CommError as error:
            print(f"W&B cannot be reached ({error}); the table is logged offline", file=sys.stderr)
            run = start(mode="offline")
    with run:
        titles: list[str | int] = [column.title for column in table.columns]
        rows = [[cell.text for cell in row] for row in table.rows]
        shown = {path.stem: wandb.Image(str(path)) for path in pictures if path.suffix == ".png"}
        run.log({"table": wandb.Table(columns=titles, data=rows), **shown})
        run.summary["notes"] = "\n".join(table.notes)
