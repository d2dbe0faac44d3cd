"""A table's copy in W&B: one run of its own in the group of the table's runs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from residual_lab.config.schema import LoggerConfig
from residual_lab.reproduce.arguments import Asked
from residual_lab.tables.table import Table


def log_summary(asked: Asked, logger: LoggerConfig, table: Table, pictures: Sequence[Path]) -> None:
    """Log the table and its pictures; the same table again replaces what was there.

    Offline, or without a key, it is written to disk, for ``wandb sync``.
    """
    import wandb

    from residual_lab.training.loggers import wandb_offline

    group = logger.group or f"{asked.table.name}-{asked.choices.scale}"
    place = f"{group}\n{asked.out.absolute()}"
    with wandb.init(
        project=logger.project,
        entity=logger.entity,
        group=group,
        job_type="table",
        name=f"table {group}",
        id=hashlib.sha256(place.encode()).hexdigest()[:16],
        resume="allow",
        mode="offline" if wandb_offline(logger) else "online",
        dir=asked.out,
        tags=list(logger.tags),
        config={"table": asked.table.name, "source": asked.table.source, "command": asked.command},
        settings=wandb.Settings(silent=True, console="off"),
    ) as run:
        titles: list[str | int] = [column.title for column in table.columns]
        rows = [[cell.text for cell in row] for row in table.rows]
        shown = {path.stem: wandb.Image(str(path)) for path in pictures if path.suffix == ".png"}
        run.log({"table": wandb.Table(columns=titles, data=rows), **shown})
        run.summary["notes"] = "\n".join(table.notes)
