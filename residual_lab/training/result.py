"""result.json: what one run came to."""

import math
from typing import Any

from torch import nn

from residual_lab.config.data import TextDataConfig
from residual_lab.config.schema import Config
from residual_lab.measure.environment import git_state, versions
from residual_lab.measure.flops import flops_per_token, model_flops_utilization, peak_flops_per_s
from residual_lab.measure.parameters import count_parameters
from residual_lab.measure.statistics import step_time_summary
from residual_lab.run_directory import RunDirectory, config_hash, read_metrics
from residual_lab.training.recorder import Recorder


def build_result(
    run: RunDirectory,
    config: Config,
    model: nn.Module,
    recorder: Recorder,
    status: str,
    error: str | None,
    fingerprint: str,
) -> dict[str, Any]:
    """All of it, for a run that ``recorder`` has watched to its end.

    Losses are nats per token, or mean squared errors; ``train_loss`` is the mean of the last
    window. ``perplexity`` is that of the test set. ``seconds`` is the training clock's. A diverged
    run has no losses.
    """
    rows = [row for row in read_metrics(run.metrics) if row["step"] <= recorder.step]
    finished = status == "finished"
    test_loss = recorder.test.get("loss") if finished else None
    flops = flops_per_token(config)
    timing = speed(rows, recorder.device_since, config.budget.batch_tokens)
    in_nats = isinstance(config.data, TextDataConfig)
    hardware = config.hardware
    assert isinstance(hardware.devices, int)
    peak = peak_flops_per_s(recorder.device_name, hardware.precision)
    processes = hardware.devices * hardware.nodes
    return {
        **identity(run),
        "status": status,
        "error": error,
        "steps": recorder.step,
        "tokens": recorder.step * config.budget.batch_tokens,
        **count_parameters(model),
        "train_loss": _last(rows, "train_loss") if finished else None,
        "val_loss": _last(rows, "val_loss") if finished else None,
        "test_loss": test_loss,
        "perplexity": math.exp(test_loss) if in_nats and test_loss is not None else None,
        **(_accuracies(rows, recorder.test) if finished else {}),
        **timing,
        "peak_memory_bytes": recorder.peak_memory,
        "flops_per_token": flops,
        "mfu": model_flops_utilization(flops, timing["tokens_per_s"], peak, processes),
        "device": recorder.device,
        "precision": hardware.precision,
        "data_fingerprint": fingerprint,
        "started": recorder.started,
        "seconds": recorder.clock.read(),
    }


def identity(run: RunDirectory) -> dict[str, Any]:
    """What is known of a run however it ends."""
    return {
        "name": run.config.name,
        "config_hash": config_hash(run.config),
        "seed": run.config.seed,
        "versions": versions(),
        "git": git_state(),
    }


def _accuracies(rows: list[dict[str, Any]], test: dict[str, float]) -> dict[str, Any]:
    """Of models that have any: ``val_accuracy``, ``test_accuracy`` and so on, between 0 and 1."""
    names = [name for name in test if name != "loss"]
    validation = {f"val_{name}": _last(rows, f"val_{name}") for name in names}
    return validation | {f"test_{name}": test[name] for name in names}


def _last(rows: list[dict[str, Any]], key: str) -> float | None:
    return next((row[key] for row in reversed(rows) if key in row), None)


def speed(rows: list[dict[str, Any]], since: int, batch_tokens: int) -> dict[str, Any]:
    """Step times of the timed windows after step ``since``, and tokens per second over them."""
    windows = [row for row in rows if "train_loss" in row]
    begun = [0, *(row["step"] for row in windows)]
    tokens, seconds, step_times = 0, 0.0, []
    for start, row in zip(begun, windows, strict=False):
        if row["tokens_per_s"] is None or start < since:
            continue
        window_tokens = (row["step"] - start) * batch_tokens
        tokens += window_tokens
        seconds += window_tokens / row["tokens_per_s"]
        step_times.append(batch_tokens / row["tokens_per_s"])
    return {
        "step_time_s": step_time_summary(step_times),
        "tokens_per_s": tokens / seconds if seconds else None,
    }
