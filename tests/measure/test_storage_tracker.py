"""The tracker counts what torch's own counts, and goes where that does not."""

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from residual_lab import build_model, compose
from residual_lab.costs.step import TrainingStep
from residual_lab.measure.memory import StorageTracker
from residual_lab.training.optimizer import build_optimizer


def step_of(*overrides: str, accumulate: int = 1) -> TrainingStep:
    small = ["model.layers=2", "model.width=32", "data.sequence_length=32", *overrides]
    config = compose(small)
    model = build_model(config)
    optimizer = build_optimizer(model, config.optim, fused=True)
    return TrainingStep(model, optimizer, precision="32-true", clip_norm=1.0, accumulate=accumulate)


def peak(tracker: MemTracker, step: TrainingStep, batch: torch.Tensor) -> dict[str, int]:
    tracker.track_external(step.model, step.optimizer, batch)
    with tracker:
        step(batch)
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {str(getattr(kind, "value", kind)): size for kind, size in snapshot.items()}


BATCH = torch.zeros(4, 33, dtype=torch.long)


def test_counts_what_torchs_tracker_counts() -> None:
    step = step_of("residual=laurel_rw+lr+pa", "model.tied_head=false")
    step(BATCH)
    expected = peak(MemTracker(), step, BATCH)
    assert peak(StorageTracker(), step, BATCH)["Total"] == expected["Total"]


def test_kinds_add_up_and_weights_are_those_of_the_model() -> None:
    step = step_of()
    step(BATCH)
    kinds = peak(StorageTracker(), step, BATCH)
    weights = 4 * sum(p.numel() for p in step.model.parameters())
    assert kinds["Parameter"] == weights
    assert kinds["Optstate"] == 2 * weights + 4 * len(list(step.model.parameters()))  # and steps
    assert sum(size for kind, size in kinds.items() if kind != "Total") == kinds["Total"]


def test_accumulated_gradients_are_there_while_the_second_batch_is_read() -> None:
    """The second batch's activations peak beside a whole set of gradients; torch's refuses it."""
    step = step_of(accumulate=2)
    step(BATCH)
    kinds = peak(StorageTracker(), step, BATCH)
    assert kinds["Gradient"] == kinds["Parameter"]
