"""Parameter groups, the connection's own learning rate and decay, and its later start."""

from typing import Any

import pytest
import torch

from residual_lab import build_model, compose
from residual_lab.training.optimizer import build_optimizer, parameter_groups

from .conftest import Lab, final_weights

SMALL = ["model.layers=2", "model.width=16", "model.heads=2", "residual=laurel_rw+lr"]


def named_groups(*overrides: str) -> dict[str, dict[str, Any]]:
    config = compose([*SMALL, *overrides])
    model = build_model(config)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, config.optim)
    for group in groups:
        group["params"] = {names[id(parameter)] for parameter in group["params"]}
    return {group["name"]: group for group in groups}


def test_every_parameter_is_in_the_group_it_belongs_to() -> None:
    groups = named_groups("optim.weight_decay=0.1", "optim.connection_weight_decay=0.02")
    model = build_model(compose(SMALL))
    for name, parameter in model.named_parameters():
        if name.startswith("connection."):
            expected = "connection"
        else:
            expected = "base_decayed" if parameter.ndim > 1 else "base_not_decayed"
        assert [g for g, group in groups.items() if name in group["params"]] == [expected]
    decays = {name: group["weight_decay"] for name, group in groups.items()}
    assert decays == {"base_decayed": 0.1, "base_not_decayed": 0.0, "connection": 0.02}


def test_decay_of_all_base_parameters() -> None:
    """As in NanoDO and Flax, whose norms decay too."""
    groups = named_groups("optim.decay=all")
    assert set(groups) == {"base_decayed", "connection"}


def test_plain_has_no_connection_group() -> None:
    assert "connection" not in named_groups("residual=plain")


def test_one_step_is_adamw_with_the_factor_of_the_group() -> None:
    """Loshchilov and Hutter's update, by hand: after one step m̂/√v̂ is the gradient's sign."""
    config = compose(
        [*SMALL, "optim.lr=0.01", "optim.weight_decay=0.1", "optim.connection_weight_decay=0.5"]
    )
    model = build_model(config)
    optimizer = build_optimizer(model, config.optim, fused=False)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    factors = {"base_decayed": 1.0, "base_not_decayed": 1.0, "connection": 3.0}
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * factors[group["name"]]
    optimizer.step()
    for name, parameter in model.named_parameters():
        connection = name.startswith("connection.")
        lr = 0.03 if connection else 0.01
        decay = 0.5 if connection else 0.1 if parameter.ndim > 1 else 0.0
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - lr * decay) - lr)


def connection_of(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: w for name, w in weights.items() if name.startswith("connection.")}


def test_a_connection_is_untouched_until_its_first_step(lab: Lab) -> None:
    """Neither gradient, decay nor moments reach it, whatever its decay; then it trains."""
    options = ["optim.connection_weight_decay=0.9", "budget.steps=4"]
    frozen = lab.trained(*options, "optim.connection_start_step=4")
    initial = build_model(frozen.config).state_dict()
    for name, weight in connection_of(final_weights(frozen)).items():
        assert torch.equal(weight, initial[name])
    late = lab.trained(*options, "optim.connection_start_step=3")
    moved = [
        not torch.equal(weight, initial[name])
        for name, weight in connection_of(final_weights(late)).items()
    ]
    assert all(moved)


def test_a_frozen_connection_has_no_part_in_the_gradient_norm(lab: Lab) -> None:
    """The base trains as if the connection were a constant: plain and frozen identity agree."""
    plain = lab.trained("residual=plain", "budget.steps=4", "model.dropout=0")
    frozen = lab.trained("optim.connection_start_step=4", "budget.steps=4", "model.dropout=0")
    expected, got = final_weights(plain), final_weights(frozen)
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-6)


def test_the_norm_of_what_trains_is_logged_and_clipped(lab: Lab) -> None:
    """With a learning rate of nothing the gradient is that of the initial weights."""
    from residual_lab.data import TextDataModule
    from residual_lab.run_directory import read_metrics

    run = lab.trained("budget.steps=1", "model.dropout=0", "optim.clip_norm=1e-3")
    model, data = build_model(run.config), TextDataModule(run.config)
    batch = next(iter(data.train_dataloader()))
    model.loss(batch[:, :-1], batch[:, 1:]).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    row = next(row for row in read_metrics(run.metrics) if "gradient_norm" in row)
    assert row["gradient_norm"] == pytest.approx(norm.item(), rel=1e-4)
