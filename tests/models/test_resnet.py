"""ResNets: counts, the forward pass of a reference, and what the blocks do."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from residual_lab import build_model, compose
from residual_lab.models import ResNet
from residual_lab.models.recompute import reentrant
from tests.models.conftest import count
from tests.models.plain_resnet import PlainResNet50, in_torchvision_names

DESK = ("model=resnet_desk", "data=digits", "optim=resnet", "hardware=cpu")


def desk(*overrides: str) -> ResNet:
    model = build_model(compose([*DESK, *overrides]))
    assert isinstance(model, ResNet)
    return model


@pytest.mark.parametrize(
    ("overrides", "parameters"),
    [
        (("model=resnet50", "data=imagenet"), 25_557_032),
        (("model=resnet50_plus1", "data=imagenet"), 25_557_032 + 1_117_184),
        (("model=resnet50", "data=imagenet", "residual=laurel_rw"), 25_557_032 + 2 * 12),
        (("model=resnet110_cifar", "data=cifar10"), 1_727_962),  # "1.7M" (He et al. 2015, table 6)
        (("model=vit_s16", "data=imagenet"), 22_122_472),
    ],
)
def test_exact_counts(overrides: tuple[str, ...], parameters: int) -> None:
    assert count(*overrides) == parameters


def test_low_rank_maps_have_the_width_of_their_stage() -> None:
    """2rD of every block but the four transitions, whose outputs have another shape than x."""
    more = count("model=resnet50", "data=imagenet", "residual=laurel_rw+lr", "residual.rank=16")
    blocks = 2 * 256 + 3 * 512 + 5 * 1024 + 2 * 2048
    assert more - 25_557_032 == 2 * 16 * blocks + 2 * 12


@pytest.fixture(scope="module")
def resnet50() -> ResNet:
    """With norms that are no identity."""
    model = build_model(compose(["model=resnet50", "data=imagenet", "hardware=cpu"]))
    assert isinstance(model, ResNet)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.ndim == 1 and tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.double()


@pytest.fixture(scope="module")
def images_BCHW() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, 64, 64, generator=generator, dtype=torch.float64)


def agree(model: nn.Module, reference: nn.Module, images: Tensor, training: bool) -> None:
    model.train(training), reference.train(training)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [False, True])
def test_the_forward_pass_is_that_of_a_plain_reference(
    resnet50: ResNet, images_BCHW: Tensor, training: bool
) -> None:
    reference = PlainResNet50().double()
    reference.load_state_dict(in_torchvision_names(resnet50.state_dict()))
    agree(resnet50, reference, images_BCHW, training)


def test_the_forward_pass_is_that_of_torchvision(resnet50: ResNet, images_BCHW: Tensor) -> None:
    pytest.importorskip("torchvision", exc_type=Exception)  # its operators may not fit this torch
    from torchvision.models import resnet50 as torchvision_resnet50

    reference = torchvision_resnet50().double()
    reference.load_state_dict(in_torchvision_names(resnet50.state_dict()))
    agree(resnet50, reference, images_BCHW, training=False)


def test_a_relu_stands_after_every_addition() -> None:
    """With weights and biases that make increments negative, the stream never is."""
    model, seen = desk().eval(), []
    for unit in model.units:
        nn.init.constant_(unit.norms[-1].bias, -1.0)
        unit.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].min().item()))
    pooled = model.hidden(torch.randn(2, 1, 8, 8))
    assert len(seen) == model.depth == 7 and min(seen) >= 0 and pooled.min() >= 0
    before = desk("model.relu=before_convolutions").eval()
    nn.init.constant_(before.units[0].convolutions[-1].weight, -1.0)
    before.units[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].min().item()))
    before.hidden(torch.randn(2, 1, 8, 8))
    assert seen[-1] < 0


def test_the_shortcut_of_padding_is_the_image_and_zeros() -> None:
    """He et al. 2015, option A: every second pixel, and no weights."""
    model = desk("model.shortcut=padding").eval()
    transition = model.stages[1].transition
    assert (
        sum(p.numel() for p in desk().parameters()) - sum(p.numel() for p in model.parameters())
        == 16 * 32 + 2 * 32
    )
    nn.init.zeros_(transition.block.norms[-1].weight)
    x_BCHW = torch.rand(2, 16, 8, 8)
    found = transition(x_BCHW)
    torch.testing.assert_close(found[:, 8:24], x_BCHW[..., ::2, ::2])
    assert not found[:, :8].any() and not found[:, 24:].any()


def test_with_gamma_at_zero_blocks_start_as_the_identity() -> None:
    model = desk("model.zero_gamma=true")
    stage = model.stages[0]
    assert stage.transition is None and len(stage.layers) == 4
    x_BHWC = torch.rand(2, 8, 8, 16)
    assert not any(layer(x_BHWC).any() for layer in stage.layers)


def test_recomputing_changes_neither_gradients_nor_running_statistics() -> None:
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    models = [
        desk("residual=laurel_rw", f"hardware.checkpoint_layers={on}") for on in (False, True)
    ]
    for model in models:
        model.double().loss(images.double(), labels).backward()
    for (name, one), other in zip(
        models[0].named_parameters(), models[1].parameters(), strict=True
    ):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    for (name, one), other in zip(models[0].named_buffers(), models[1].buffers(), strict=True):
        if "num_batches" not in name:
            torch.testing.assert_close(one, other, msg=name)


@pytest.mark.parametrize("width", [1, 64])
def test_a_gain_is_a_factor_on_the_increment(width: int) -> None:
    """Also in what becomes of gradients and running statistics, which see no gain."""
    blocks = [desk().double().units[-1] for _ in range(2)]
    nn.init.uniform_(blocks[0].norms[-1].bias)
    blocks[1].load_state_dict(blocks[0].state_dict())
    width = min(width, blocks[0].norms[-1].num_features)
    gains = [torch.linspace(0.5, 2, width).double().requires_grad_() for _ in blocks]
    x_BHWC = torch.randn(2, 4, 4, blocks[0].convolutions[0].in_channels).double()
    made = [blocks[0](x_BHWC, gain=gains[0]), blocks[1](x_BHWC) * gains[1]]
    for y in made:
        y.square().sum().backward()
    torch.testing.assert_close(*made)
    torch.testing.assert_close(gains[0].grad, gains[1].grad)
    for (name, one), other in zip(
        blocks[0].named_parameters(), blocks[1].parameters(), strict=True
    ):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    for one, other in zip(blocks[0].buffers(), blocks[1].buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_recomputed_option_gets_its_gradient_where_only_inputs_do() -> None:
    gain = torch.tensor([2.0], requires_grad=True)
    y = reentrant(checkpoint, lambda x, *, gain: (gain * x).sin(), [torch.ones(3)], {"gain": gain})
    y.sum().backward()
    torch.testing.assert_close(gain.grad, 3 * torch.tensor([2.0]).cos())


def test_accuracy_is_counted_as_by_hand() -> None:
    """Ten classes in order of their logits: 9, 8, 7, 6, 5 are the first five."""
    model = desk().eval()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.arange(10.0))
    found = model.evaluate(torch.randn(4, 1, 8, 8), torch.tensor([9, 5, 4, 9]))
    assert found["accuracy"].item() == 0.5 and found["top5_accuracy"].item() == 0.75
    by_hand = torch.arange(10.0).logsumexp(0) - torch.tensor([9.0, 5, 4, 9]).mean()
    torch.testing.assert_close(found["loss"], by_hand)


def test_labels_are_smoothed_in_training_alone() -> None:
    """(1 − s)·CE + s·mean over classes of −log p (Szegedy et al. 2015)."""
    model = desk("data.label_smoothing=0.1")
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    log_p = model(images).log_softmax(-1)
    exact = -log_p[torch.arange(4), labels].mean()
    torch.testing.assert_close(model.loss(images, labels), 0.9 * exact - 0.1 * log_p.mean())
    model.eval()
    log_p = model(images).log_softmax(-1)
    torch.testing.assert_close(model.loss(images, labels), -log_p[torch.arange(4), labels].mean())
