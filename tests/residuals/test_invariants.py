"""What must hold for every connection, at both granularities (design: invariants 2, 3 and 9)."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from residual_lab import build_model
from residual_lab.models import Decoder
from residual_lab.residuals import find_connection
from tests.residuals.conftest import GRANULARITIES, NAMES, configuration, jiggle, types_read_by

Build = Callable[..., Decoder]
everywhere = pytest.mark.parametrize("granularity", GRANULARITIES)
every = pytest.mark.parametrize("name", NAMES)


def gradients(model: Decoder, tokens_BT: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing, f"no gradient for {missing}"
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every
@everywhere
def test_equals_plain_at_its_identity(
    name: str, granularity: str, tiny: Build, tokens_BT: Tensor
) -> None:
    """The stated identity gives plain's logits and base gradients, to float64 rounding."""
    where = f"residual.granularity={granularity}"
    kind = find_connection(configuration(f"residual={name}").residual.connection)
    if kind.identity is None:
        pytest.skip("has no setting at which it equals plain")
    options = [f"residual.{key}={_text(value)}" for key, value in kind.identity.items()]
    model = tiny(f"residual={name}", where, *options)
    plain = tiny("residual=plain", where)
    torch.testing.assert_close(model(tokens_BT), plain(tokens_BT), rtol=1e-12, atol=1e-12)
    found = gradients(model, tokens_BT)
    for key, expected in gradients(plain, tokens_BT).items():
        if kind.separate_inputs and key.endswith("attention.norm.weight"):  # one norm is three
            expected = expected - sum(found[key.replace("norm.", f"norm_{i}.")] for i in "kv")
        torch.testing.assert_close(found[key], expected, rtol=1e-10, atol=1e-13)


def _text(value: object) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


@every
@everywhere
def test_base_weights_do_not_depend_on_the_connection(
    name: str, granularity: str, tiny: Build
) -> None:
    """F17: one seed gives one set of base weights, bit for bit, and leaves the global stream."""
    before = torch.random.get_rng_state()
    model = tiny(f"residual={name}", f"residual.granularity={granularity}")
    assert torch.equal(torch.random.get_rng_state(), before)
    state = model.state_dict()
    for key, expected in tiny("residual=plain").state_dict().items():
        if key in state:  # a connection may do without the layers' norms
            assert torch.equal(state[key], expected) or model.connection.initial_gains, key


@every
@everywhere
def test_every_parameter_learns(
    name: str, granularity: str, tiny: Build, tokens_BT: Tensor
) -> None:
    """After three steps every parameter has had a gradient that is not zero: no dead ReLU."""
    model = tiny(f"residual={name}", f"residual.granularity={granularity}")
    alive: set[str] = set()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(3):
        alive |= {key for key, g in gradients(model, tokens_BT).items() if g.abs().max() > 0}
        optimizer.step()
    assert alive == {key for key, _ in model.named_parameters()}


@every
@everywhere
def test_no_output_depends_on_a_later_token(
    name: str, granularity: str, tiny: Build, tokens_BT: Tensor
) -> None:
    model = jiggle(tiny(f"residual={name}", f"residual.granularity={granularity}")).eval()
    changed = tokens_BT.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 31
    first, second = model(tokens_BT), model(changed)
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.equal(first[:, 5:], second[:, 5:])


@every
@everywhere
def test_checkpointed_layers_give_the_same_gradients(
    name: str, granularity: str, tiny: Build, tokens_BT: Tensor
) -> None:
    """F34: recomputing a layer in backward changes nothing."""
    options = (f"residual={name}", f"residual.granularity={granularity}")
    straight = jiggle(tiny(*options)).eval()
    checkpointed = jiggle(tiny(*options, "hardware.checkpoint_layers=true")).eval()
    expected = gradients(straight, tokens_BT)
    for key, found in gradients(checkpointed, tokens_BT).items():
        torch.testing.assert_close(found, expected[key], rtol=1e-10, atol=1e-14)


@every
def test_two_forwards_then_two_backwards(name: str, tiny: Build, tokens_BT: Tensor) -> None:
    """No state is kept on the module between calls."""
    model = jiggle(tiny(f"residual={name}")).eval()
    first, second = tokens_BT, tokens_BT.flip(0, 1)
    expected = [gradients(model, tokens) for tokens in (first, second)]
    losses = [model.loss(tokens[:, :-1], tokens[:, 1:]) for tokens in (first, second)]
    for loss, wanted in zip(losses, expected, strict=True):
        model.zero_grad()
        loss.backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, wanted[key], rtol=1e-10, atol=1e-14)


@every
def test_copies_after_a_forward(name: str, tiny: Build, tokens_BT: Tensor) -> None:
    model = jiggle(tiny(f"residual={name}")).eval()
    expected = model(tokens_BT)
    assert torch.equal(copy.deepcopy(model)(tokens_BT), expected)


@every
@everywhere
def test_decoding_with_a_cache_equals_the_whole_forward(
    name: str, granularity: str, tiny: Build, tokens_BT: Tensor
) -> None:
    """A connection mixes over depth alone: token by token gives what all at once gives."""
    model = jiggle(tiny(f"residual={name}", f"residual.granularity={granularity}")).eval()
    caches = model.new_caches()
    parts = [model(part, caches) for part in tokens_BT.split([4, 1, 3, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens_BT), rtol=1e-9, atol=1e-10)


@every
@everywhere
def test_shared_weights(name: str, granularity: str, tiny: Build, tokens_BT: Tensor) -> None:
    """F32: layers share weights only where model.share says so, connections nothing over depth."""
    options = (f"residual={name}", f"residual.granularity={granularity}")
    whole, shared = tiny(*options), tiny(*options, "model.share=2")
    assert len({id(layer) for layer in whole.layers}) == len(whole.layers)
    assert len(shared.layers) == len(whole.layers) // 2
    deeper = tiny(*options, f"model.layers={2 * len(whole.layers)}")
    count = [
        sum(p.numel() for p in model.connection.parameters()) for model in (whole, shared, deeper)
    ]
    assert count[0] == count[1]
    assert count[2] > count[0] or count == [0, 0, 0]
    gradients(shared, tokens_BT)


@every
def test_autocast_to_bfloat16(name: str, tiny: Build, tokens_BT: Tensor) -> None:
    """bf16-mixed gives the float32 loss to bfloat16's rounding, and finite gradients.

    Layers read float32 throughout: the stream is that of the embedding.
    """
    model = tiny(f"residual={name}").float().eval()
    read = types_read_by(model)
    exact = model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
    loss.backward()
    torch.testing.assert_close(loss.float(), exact, rtol=2e-2, atol=0)
    assert read == {torch.float32}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every
def test_bfloat16_throughout(name: str, tiny: Build, tokens_BT: Tensor) -> None:
    model = tiny(f"residual={name}").bfloat16().eval()
    loss = model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
    loss.backward()
    exact = tiny(f"residual={name}").eval().loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
    torch.testing.assert_close(loss.double(), exact, rtol=4e-2, atol=0)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
@every
def test_compiled_equals_eager(name: str, tiny: Build, tokens_BT: Tensor) -> None:
    """To float64 rounding; with learned positions, since rotary angles are float32."""
    torch._dynamo.reset()  # it gives up after so many recompilations of one function
    learned = ("model.positions=learned", "model.max_sequence_length=9")
    model = jiggle(tiny(f"residual={name}", *learned)).eval()
    expected = gradients(model, tokens_BT)
    keys = list(model.state_dict())
    compiled = torch.compile(model.loss, fullgraph=True)
    model.zero_grad()
    compiled(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
    assert list(model.state_dict()) == keys
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[key], rtol=1e-8, atol=1e-12)


def test_whole_numbers_are_floats_where_an_option_is_one() -> None:
    """``residual.bias=0`` reads as an integer, of which no parameter can be made."""
    changed = {}
    for name in NAMES:
        options = configuration(f"residual={name}").residual.options
        whole = [
            key for key, value in options.items() if type(value) is float and value == int(value)
        ]
        if whole:
            changed[name] = [f"residual.{key}={int(options[key])}" for key in whole]
    assert {"exclusive_gating", "shortcut_gating", "rezero"} <= changed.keys()
    for name, overrides in changed.items():
        expected = build_model(configuration(f"residual={name}")).state_dict()
        found = build_model(configuration(f"residual={name}", *overrides)).state_dict()
        for key, value in expected.items():
            assert torch.equal(found[key], value) and found[key].dtype == value.dtype, (name, key)
