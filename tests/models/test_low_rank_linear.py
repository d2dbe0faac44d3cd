"""The toy of DeepCrossAttention's figure 1: linear layers of low rank."""

import pytest
import torch

from residual_lab import build_model, compose
from residual_lab.measure.flops import flops_per_token
from residual_lab.models import LowRankLinear

TOY = ("model=low_rank_linear", "data=linear_map", "optim=sgd", "hardware=cpu")


def toy(*overrides: str) -> LowRankLinear:
    model = build_model(compose([*TOY, *overrides]))
    assert isinstance(model, LowRankLinear)
    return model


def test_it_computes_the_product_of_identities_and_maps_of_low_rank() -> None:
    """x (I + U₁W₁) … (I + U_LW_L), with each U W of the rank."""
    model = toy("model.layers=3").double()
    product = torch.eye(100, dtype=torch.float64)
    for layer in model.layers:
        assert torch.linalg.matrix_rank(layer.U @ layer.W) == 3
        product = product @ (torch.eye(100) + layer.U @ layer.W)
    x_ND = torch.randn(7, 100, dtype=torch.float64)
    torch.testing.assert_close(model(x_ND), x_ND @ product)


def test_a_generalised_residual_network_starts_as_the_residual_network_and_has_its_bound() -> None:
    """Theorem 4.1: GRN-v1's map differs from a multiple of I by the rank 2·3 at most."""
    plain, grn = toy("model.layers=2"), toy("model.layers=2", "residual=grn_v1")
    x_ND = torch.randn(7, 100)
    torch.testing.assert_close(grn(x_ND), plain(x_ND))
    with torch.no_grad():
        grn.connection.b.copy_(torch.randn(grn.connection.b.shape))
        matrix = grn.double()(torch.eye(100, dtype=torch.float64))
    alpha = torch.linalg.eigvals(matrix).real.median()
    assert torch.linalg.matrix_rank(matrix - alpha * torch.eye(100), atol=1e-9) == 6


def test_parameters_flops_and_initial_spread() -> None:
    """2dr* parameters (section 4, r* = 30); a multiply-add is two FLOPs, and backward costs twice
    the forward but for the first layer's input, which needs no gradient."""
    model = toy()
    assert sum(p.numel() for p in model.parameters()) == 2 * 100 * 30
    assert model.layers[0].U.std().item() == pytest.approx(0.1, rel=0.15)
    forward = 2 * 2 * 100 * 30
    first_input = 2 * 100 * 3
    assert flops_per_token(compose(TOY)) == 3 * forward - first_input


def test_base_weights_do_not_depend_on_the_connection_and_recomputing_changes_nothing() -> None:
    plain, grn = toy(), toy("residual=laurel_rw+lr", "residual.rank=2")
    for one, other in zip(plain.layers, grn.layers, strict=True):
        assert torch.equal(one.U, other.U) and torch.equal(one.W, other.W)
    x_ND, y_ND = torch.randn(2, 7, 100)
    gradients = []
    for model in (
        grn,
        toy("residual=laurel_rw+lr", "residual.rank=2", "hardware.checkpoint_layers=true"),
    ):
        model.loss(x_ND, y_ND).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_a_method_that_scales_initial_outputs_scales_those_of_linear_layers() -> None:
    plain = toy()
    scaled = toy("residual=deepnorm", "residual.granularity=layer")
    gain = scaled.connection.initial_gains["outputs"]
    assert gain != 1
    torch.testing.assert_close(scaled.layers[4].W, gain * plain.layers[4].W)
    assert torch.equal(scaled.layers[4].U, plain.layers[4].U)
