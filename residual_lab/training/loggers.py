"""Mirrors of a run's files: W&B, CSV, TensorBoard. Tables never read them."""

import logging
import netrc
import os
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from residual_lab.config.schema import Config, LoggerConfig
from residual_lab.errors import ConfigError
from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.training.recorder import mirror

log = logging.getLogger(__name__)
WANDB_TIMEOUT_S = 60


def build_loggers(run: RunDirectory, config: Config, step: int, first: bool) -> list[Logger]:
    """The logger that ``logger.name`` names, ready to go on from ``step``.

    Only the ``first`` process opens a connection or touches a file. Raises ConfigError for
    ``logger.mode=online`` without a key.
    """
    name = config.logger.name
    if name == "wandb":
        return [_wandb(run, config, first)]
    if name == "csv":
        return [_csv(run, step, first)]
    if name == "tensorboard":
        # Rows after the checkpoint come again; TensorBoard drops their first edition.
        purge = step + 1 if step else None
        return [TensorBoardLogger(run.path, name="tensorboard", version="", purge_step=purge)]
    return []


def finish(loggers: list[Logger], result: Mapping[str, Any], exit_status: int) -> None:
    """Put the final numbers into the summary and close; a failed run is marked as failed."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.summary.update(_flat(result))
            logger.experiment.finish(exit_code=exit_status)
        else:
            logger.finalize("success" if exit_status == 0 else "failed")


def _csv(run: RunDirectory, step: int, first: bool) -> Logger:
    """Lightning's CSVLogger deletes what is there, so it starts with the rows up to ``step``."""
    logger = CSVLogger(run.path, name="csv", version="", flush_logs_every_n_steps=1)
    if first:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Previous log files in this directory.*")
            _ = logger.experiment
        for row in read_metrics(run.metrics):
            if row["step"] <= step:
                mirror(logger, row)
    return logger


def _wandb(run: RunDirectory, config: Config, first: bool) -> WandbLogger:
    offline = wandb_offline(config.logger)
    if first and not offline:
        import wandb

        logger = _wandb_logger(run, config, offline=False)
        try:
            _ = logger.experiment
            return logger
        except wandb.errors.CommError as error:
            log.warning("W&B cannot be reached (%s); this run is logged offline", error)
    return _wandb_logger(run, config, offline=offline or first)


def _wandb_logger(run: RunDirectory, config: Config, offline: bool) -> WandbLogger:
    import wandb

    return WandbLogger(
        name=run.path.name,
        save_dir=run.path,
        version=_wandb_id(run.path),
        offline=offline,
        project=config.logger.project,
        entity=config.logger.entity,
        group=config.logger.group,
        tags=list(config.logger.tags),
        config=config.model_dump(mode="json"),
        settings=wandb.Settings(console="off", init_timeout=WANDB_TIMEOUT_S),
    )


def _wandb_id(folder: Path) -> str:
    """The id of the one W&B run that belongs to this run directory."""
    path = folder / "wandb-id"
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def wandb_offline(settings: LoggerConfig) -> bool:
    """Whether W&B writes to the run directory only; ``auto`` is online where there is a key."""
    if settings.mode == "online" and not _wandb_key():
        raise ConfigError(
            "logger.mode=online: W&B has no key here; run `wandb login`, or set "
            "logger.mode=offline and `wandb sync` the run later"
        )
    if settings.mode == "auto" and "WANDB_MODE" in os.environ:
        return os.environ["WANDB_MODE"] != "online"
    return settings.mode == "offline" or not _wandb_key()


def _wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc().authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _flat(numbers: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
