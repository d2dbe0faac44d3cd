"""Every connection on stages of convolutions and on a ViT: the same invariants as in a decoder."""

from functools import cache
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from residual_lab import build_model, compose
from residual_lab.config import Config, conf_directory
from residual_lab.config.validation import validate
from residual_lab.errors import ConfigError
from residual_lab.models import Model
from residual_lab.residuals import Connection, find_connection
from residual_lab.residuals.mixing import carry, carry_by_autograd
from tests.residuals.conftest import NAMES, TINY_OPTIONS, types_read_by

RESNET = ("model=resnet_desk", "model.base_width=8", "model.stages=[4,5]", "optim=resnet")
VIT = ("model=vit_desk", "model.layers=4", "model.width=24", "model.heads=2", "optim=resnet")
AFTER = "model.relu=after_addition"
FAMILIES = {
    "resnet": (*RESNET, "model.relu=before_convolutions"),
    "resnet, ReLU after addition": (*RESNET, AFTER),
    "vit": VIT,
}


@cache
def base(family: str) -> dict[str, Any]:
    return compose(["data=digits", *FAMILIES[family]]).model_dump(mode="json")


@cache
def connection_of(name: str) -> type[Connection]:
    return find_connection(residual_of(name)["connection"])


@cache
def residual_of(name: str) -> dict[str, Any]:
    options = dict(option.split("=") for option in TINY_OPTIONS.get(name, ()))
    read: Any = OmegaConf.to_container(
        OmegaConf.load(conf_directory() / "residual" / f"{name}.yaml")
    )
    changed = {key.removeprefix("residual."): int(value) for key, value in options.items()}
    return {**read, **changed}


@cache
def configuration(family: str, name: str, at_identity: bool = False) -> Config | str:
    """The configuration, or the line that refuses it."""
    residual = residual_of(name)
    if at_identity or family != "vit":
        residual = {**residual, "granularity": "layer"}
    if at_identity:
        residual |= connection_of(name).identity or {}
    try:
        return validate({**base(family), "residual": residual})
    except ConfigError as error:
        (line,) = error.problems
        return line


def built(family: str, name: str, at_identity: bool = False) -> Model:
    config = configuration(family, name, at_identity)
    if isinstance(config, str):
        pytest.skip(config)
    return build_model(config).double()


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(6, 1, 8, 8, generator=generator, dtype=torch.float64)
    return images, torch.randint(10, (6,), generator=generator)


def gradients(model: Model, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    model.loss(*batch).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


every = pytest.mark.parametrize("name", NAMES)
everywhere = pytest.mark.parametrize("family", FAMILIES)


@every
@everywhere
def test_equals_plain_at_its_identity(family: str, name: str, batch: Any) -> None:
    kind = connection_of(name)
    if kind.identity is None:
        pytest.skip("has no setting at which it equals plain")
    model, plain = built(family, name, True), built(family, "plain", True)
    with torch.no_grad():
        for head in (model.head, plain.head):
            head.weight.copy_(torch.linspace(-1, 1, head.weight.numel()).view_as(head.weight))
    torch.testing.assert_close(model(batch[0]), plain(batch[0]), rtol=1e-11, atol=1e-11)
    found = gradients(model, batch)
    for key, expected in gradients(plain, batch).items():
        if kind.separate_inputs and "attention.norm." in key:  # one norm is three
            expected = expected - sum(found[key.replace("norm.", f"norm_{i}.")] for i in "kv")
        torch.testing.assert_close(found[key], expected, rtol=1e-8, atol=1e-10, msg=key)


@every
@everywhere
def test_every_parameter_learns_and_base_weights_are_the_same(
    family: str, name: str, batch: Any
) -> None:
    model = built(family, name)
    state = model.state_dict()
    for key, expected in built(family, "plain").state_dict().items():
        if key in state:
            assert torch.equal(state[key], expected) or model.connection.initial_gains, key
    names = {key for key, _ in model.named_parameters()}
    assert all(p.ndim for p in model.parameters())
    alive: set[str] = set()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(4):  # a ViT's head is zero at first
        alive |= {key for key, g in gradients(model, batch).items() if g.abs().max() > 0}
        optimizer.step()
    assert alive == names


@every
def test_a_refusal_says_why_in_one_line(name: str) -> None:
    for family in FAMILIES:
        line = configuration(family, name)
        kind = connection_of(name)
        if family == "vit":
            assert isinstance(line, Config)
        elif kind.separate_inputs or kind.edits_values:
            continue
        elif kind.pre_norm and (kind.takes_relu or "after" not in family):
            assert isinstance(line, Config)
        else:
            assert isinstance(line, str) and line.startswith("residual.connection=")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_keeps_its_type_under_autocast(
    family: str, name: str, batch: tuple[Tensor, Tensor]
) -> None:
    """Otherwise losses, memory and step times would also be those of another precision."""
    expected = {torch.float32 if family == "vit" else torch.bfloat16}
    model = built(family, name).float()
    read = types_read_by(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(batch[0].float(), batch[1])
    loss.backward()
    assert read == expected
    gradients = [p.grad for p in model.connection.parameters() if p.requires_grad]
    assert all(g is not None and g.dtype == torch.float32 for g in gradients)


@pytest.mark.parametrize("positive", [True, False])
def test_a_narrow_sum_has_the_wide_ones_gradients(positive: bool) -> None:
    """To bfloat16's rounding, for weights in float32 as under autocast."""
    generator = torch.Generator().manual_seed(5)
    f, x = (torch.randn(2, 64, 64, generator=generator).bfloat16() for _ in range(2))
    results = []
    for dtype in (torch.bfloat16, torch.float64):
        made = [t.detach().to(dtype).requires_grad_() for t in (f, x)]
        weights = [torch.tensor([w], requires_grad=True) for w in (0.7, 1.3)]
        total = carry(made[0], weights[0], [made[1]], [weights[1]], alpha_is_positive=positive)
        assert total.dtype == dtype
        (total.double() * made[0].double().detach()).sum().backward()
        results.append([t.grad.double() for t in (*made, *weights) if t.grad is not None])
    assert len(results[0]) == 4
    for narrow, wide in zip(*results, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=1e-2, atol=2e-2 * wide.abs().max().item())


@pytest.mark.parametrize("positive", [True, False])
def test_the_relu_of_a_sum_has_the_gradients_that_autograd_finds(positive: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(2, 3, 3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    z, up = (
        torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((2, 3, 3, 2), (2, 4))
    )
    alpha, beta = torch.tensor([[0.7], [1.3]], dtype=torch.float64).unbind(0)
    results = []
    for function in (carry, carry_by_autograd):
        f, x, a, b, zz, uu = (t.clone().requires_grad_() for t in (*made, alpha, beta, z, up))
        if function is carry:
            total = carry(f, a, [x], [b], (zz, uu), alpha_is_positive=positive, relu=True)
        else:
            total = torch.relu(carry_by_autograd(f, a, [x], [b], (zz, uu)))
        total.square().sum().backward()
        results.append([total, f.grad, x.grad, a.grad, b.grad, zz.grad, uu.grad])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
