"""The life of one run: prepare, train or resume, validate, test, write the result."""

import logging
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import PyTorchProfiler
from rich.console import Console

from residual_lab.config.schema import Config
from residual_lab.data import build_data_module, fingerprint
from residual_lab.data.module import DataModule, TextDataModule
from residual_lab.errors import DataError
from residual_lab.files import write_atomically
from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.training import checkpoints
from residual_lab.training.hardware import prepare_processor, resolve_hardware, trainer_options
from residual_lab.training.inspection import Inspection
from residual_lab.training.loggers import build_loggers, finish
from residual_lab.training.module import ModelTraining
from residual_lab.training.progress import StepProgress
from residual_lab.training.recorder import Recorder
from residual_lab.training.result import build_result
from residual_lab.training.start import start_from
from residual_lab.training.stopping import Diverged, Interrupted, StopSignals

log = logging.getLogger(__name__)

FINISHED, FAILED, DIVERGED = 0, 1, 3


@dataclass
class Parts:
    """What one process of a run is made of."""

    run: RunDirectory
    config: Config  # with this machine's hardware filled in
    fingerprint: str
    module: ModelTraining
    data: DataModule
    recorder: Recorder
    loggers: list[Logger]
    trainer: pl.Trainer


def execute(
    run: RunDirectory,
    *,
    devices: int | None,
    first: bool,
    signals: StopSignals,
    console: Console | None,
) -> int:
    """Train ``run`` to its end and write ``result.json``; return the exit status.

    ``first``: this process keeps the files; the others of the run compute only. Raises LabError
    for what the user can mend, Interrupted when a signal came, and whatever else went wrong.
    """
    if first:
        checkpoints.remove_unfinished(run.checkpoints)
    checkpoint = checkpoints.newest(run.checkpoints)
    parts = _assemble(run, devices, first, signals, console, checkpoints.step_of(checkpoint))
    log.info("run directory: %s", run.path)
    status, error, exit_status = "finished", None, FINISHED
    try:
        _train(parts, checkpoint)
    except Diverged as diverged:
        log.error("%s", diverged)
        status, error, exit_status = "diverged", str(diverged), DIVERGED
    except BaseException as failure:
        _close(parts, {}, failure.exit_status if isinstance(failure, Interrupted) else FAILED)
        raise
    if parts.trainer.is_global_zero:
        result = build_result(
            run, parts.config, parts.module.model, parts.recorder, status, error, parts.fingerprint
        )
        run.write_result(result | {"first_sequence": parts.data.first_sequence})
        checkpoints.remove(run.checkpoints, "*.ckpt")
        _close(parts, result, exit_status)
    return exit_status


def _assemble(
    run: RunDirectory,
    devices: int | None,
    first: bool,
    signals: StopSignals,
    console: Console | None,
    step: int,
) -> Parts:
    config = resolve_hardware(run.config, devices)
    prepare_processor(config.hardware)
    hashed = fingerprint(config)  # before any process waits for another
    _check_data(run, hashed, first, step)
    module, data, recorder = ModelTraining(config), build_data_module(config), Recorder(run, config)
    data.start_step = step
    if config.start.run is not None and step == 0:
        data.first_sequence = start_from(module.model, config, hashed)
    loggers = build_loggers(run, config, step, first)
    callbacks = [
        recorder,
        checkpoints.Checkpointing(
            run.checkpoints,
            recorder,
            signals,
            config.run.checkpoint_every_steps,
            config.measure.window_steps,
        ),
        StepProgress(recorder, console, config.steps),
        signals,
        Inspection(run, config),
    ]
    trainer = _trainer(run, config, callbacks, loggers)
    return Parts(run, config, hashed, module, data, recorder, loggers, trainer)


def _check_data(run: RunDirectory, fingerprint: str, first: bool, step: int) -> None:
    """Keep the fingerprint of the data with the run; refuse to go on from ``step`` on other data.

    A run without a checkpoint begins anew, on what data there is. Raises DataError.
    """
    begun_with = run.data_fingerprint if step else None
    if begun_with is None:
        if first:
            run.write_data_fingerprint(fingerprint)
    elif begun_with != fingerprint:
        raise DataError(
            f"{run.path.name}: the data has changed since the run began (fingerprint "
            f"{begun_with[:12]}, now {fingerprint[:12]}); restore it or start a run of its own in "
            "another run.dir"
        )


def _trainer(
    run: RunDirectory, config: Config, callbacks: list[pl.Callback], loggers: list[Logger]
) -> pl.Trainer:
    trainer = pl.Trainer(
        **trainer_options(config.hardware),
        max_steps=config.steps,
        max_epochs=-1,
        # Lightning counts micro-batches; the train loader has no end, so the count never restarts.
        val_check_interval=config.evaluation.every_steps * config.hardware.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        inference_mode=False,  # sharded and compiled modules do not take it
        deterministic=config.hardware.deterministic,
        detect_anomaly=config.debug.detect_anomaly,
        profiler=_profiler(run) if config.debug.profile else None,
        logger=loggers or False,
        callbacks=callbacks,
        default_root_dir=run.path,
    )
    # Lightning would ask the other processes about SIGTERM before every micro-batch, and wait for
    # the device to answer; StopSignals asks once a window.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


def _profiler(run: RunDirectory) -> PyTorchProfiler:
    return PyTorchProfiler(
        dirpath=run.path / "profile",
        filename="steps",
        schedule=torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1),
        export_to_chrome=True,
    )


def _train(parts: Parts, checkpoint: Any) -> None:
    """Fit from ``checkpoint``, then validate, save the weights, and test."""
    trainer, module, data, recorder = parts.trainer, parts.module, parts.data, parts.recorder
    if checkpoint is not None:
        checkpoints.check(checkpoint)
        step = checkpoints.step_of(checkpoint)
        if _validation_was_cut_off(parts, step):
            trainer.validate(module, data, checkpoint, verbose=False, weights_only=True)
        recorder.validated = step
    elif parts.config.start.run is not None:  # what the weights were worth before
        trainer.validate(module, datamodule=data, verbose=False)
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    if recorder.validated != parts.config.steps:
        trainer.validate(module, datamodule=data, verbose=False)
    checkpoints.save_final(trainer, module.model, parts.run.checkpoints)
    if isinstance(data, TextDataModule) and data.corpus is not None and trainer.is_global_zero:
        own = data.corpus.tokenizer_file.path  # what reads text needs no more than the run
        write_atomically(parts.run.checkpoints / own.name, own.read_bytes())
    trainer.test(module, datamodule=data, verbose=False)


def _validation_was_cut_off(parts: Parts, step: int) -> bool:
    """Whether the run was stopped between a checkpoint and the validation after the same step."""
    due = step % parts.config.evaluation.every_steps == 0 or step == parts.config.steps
    rows = read_metrics(parts.run.metrics)
    return due and not any(row["step"] == step and "val_loss" in row for row in rows)


def _close(parts: Parts, result: dict[str, Any], exit_status: int) -> None:
    if parts.trainer.is_global_zero:
        finish(parts.loggers, result, exit_status)
