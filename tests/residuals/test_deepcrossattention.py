"""DeepCrossAttention and the GRNs against their formulas, the paper's counts, and a package."""

import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.dca_package import connection_like, layers_of, package_model
from residual_lab import build_model
from residual_lab.errors import ConfigError
from residual_lab.models import Decoder
from residual_lab.residuals.deepcrossattention import DCA, GRN
from tests.residuals.conftest import configuration, saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


def paper_stack(
    outputs: int, k: int | None, model_input: bool, middle: bool
) -> list[tuple[int, ...]]:
    """{model input, sum of the middle, last k} of f_0 … as the outputs that each entry sums."""
    every = list(range(outputs))
    if k is None:
        return [(j,) for j in every]
    last, rest = every[-k:], every[:-k]
    own = [(0,)] if model_input and rest else []
    rest = rest[len(own) :]
    return own + ([tuple(rest)] if rest and middle else []) + [(j,) for j in last]


def formula_of(connection: GRN, layers: nn.ModuleList, options: dict[str, Any]) -> Any:
    """Equations of section 3, with a list of increments; weights lie entry by entry."""
    depth, mixtures = len(layers), connection.mixtures
    version, relu = options.get("version", "v3"), options.get("relu", "term")
    stacks = {
        t: paper_stack(
            t,
            options.get("k"),
            options.get("model_input", True),
            options.get("sum_of_middle", True),
        )
        for t in range(1, depth + 2)
    }
    reads = [
        t
        for t in stacks
        if (t > 1 or options.get("first", True)) and (t <= depth or options.get("final", True))
    ]
    entries = list(dict.fromkeys(entry for t in stacks for entry in stacks[t]))
    sums = [(t, o) for t in reads for o in range(mixtures if t <= depth else 1)]
    order = [(entry, t, o) for entry in entries for t, o in sums if entry in stacks[t]]
    assert len(order) == len(connection.b)
    per_source = options.get("dynamic_weights", "per_source") == "per_source"

    def mixture(f: list[Tensor], t: int, o: int) -> Tensor:
        g = torch.zeros_like(f[0])
        for entry in stacks[t]:
            value = sum(f[j] for j in entry)
            n = order.index((entry, t, o))
            c = connection.b[n]
            if version == "v3":
                z = (value @ connection.w[n if per_source else sums.index((t, o))])[..., None]
                c = c + torch.relu(z) if relu == "term" else torch.relu(c + z)
            g = g + c * value
        return g

    def formula(x: Tensor) -> Tensor:
        f = [x]
        for t, layer in enumerate(layers, 1):
            g = [mixture(f, t, o) for o in range(mixtures)] if t in reads else [x] * mixtures
            f.append(layer(g[0], *g) if mixtures == 3 else layer(g[0]))
        if depth + 1 in reads:
            return mixture(f, depth + 1, 0)
        return sum(f[j] for entry in stacks[depth + 1] for j in entry)

    return formula


OPTIONS: list[dict[str, Any]] = [
    {"version": "v1"},
    {"version": "v2"},
    {"version": "v3"},
    {"relu": "sum"},
    {"dynamic_weights": "per_grn"},
    {"dynamic_weights": "per_grn", "relu": "sum", "k": 2},
    {"first": False},
    {"final": False},
    {"first": False, "final": False, "k": 2},
    {"version": "v1", "k": 1, "final": False},
    *(
        {"k": k, "model_input": own, "sum_of_middle": middle}
        for k, own, middle in product((1, 2, 3, 8), (True, False), (True, False))
    ),
]


@pytest.mark.parametrize("kind", [GRN, DCA])
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items())
)
def test_against_the_formula(kind: type[GRN], options: dict[str, Any]) -> None:
    connection, layers = kind(5, 6, **options).double(), toy_layers(5)
    check_against(connection, layers, formula_of(connection, layers, options))


def test_k_is_refused_nothing_but_what_needs_it() -> None:
    with pytest.raises(ConfigError, match=r"residual\.model_input=false: without k"):
        GRN(4, 6, model_input=False)
    with pytest.raises(ConfigError, match=r"residual\.sum_of_middle=false: without k"):
        DCA(4, 6, sum_of_middle=False)
    with pytest.raises(ConfigError, match=r"residual\.first=false, residual\.final=false: no GRN"):
        GRN(1, 6, first=False, final=False)


def test_stack_sizes_with_five_layers() -> None:
    """6 entries without k; 3, 4 and 5 with k = 1, 2, 3: the model input, the middle, the last k."""
    sizes = [max(map(len, DCA(5, 6, k=k).stacks)) for k in (None, 1, 2, 3)]
    assert sizes == [6, 3, 4, 5]


def test_counts_of_table_7() -> None:
    """LM1B, 6 layers of 512: 49.65 (v1), 49.66, 49.68 and 49.73 M, cut off after two digits."""
    shape = ("model.layers=6", "model.width=512", "model.norm=layernorm", "model.norm_bias=true")

    def parameters(name: str) -> int:
        with torch.device("meta"):
            return count(build_model(configuration(*shape, f"residual={name}")))

    names = ("grn_v1", "grn_v2", "grn_v3", "dca")
    totals = [49_653_040 + parameters(name) - parameters("plain") for name in names]
    assert totals == [49_653_068, 49_667_376, 49_681_712, 49_737_008]
    assert [f"{total / 1e6:.4f}" for total in totals] == [
        "49.6531",
        "49.6674",
        "49.6817",
        "49.7370",
    ]
    assert [total // 10_000 for total in totals] == [4965, 4966, 4968, 4973]


@pytest.mark.parametrize("name", ["grn_v1", "grn_v2", "grn_v3", "dca", "dca_k"])
@pytest.mark.parametrize("relu", ["term", "sum"])
@pytest.mark.parametrize("where", ["per_source", "per_grn"])
def test_every_weight_gets_a_gradient_at_the_start(
    name: str, relu: str, where: str, tiny: Build, tokens_BT: Tensor
) -> None:
    """Each single b and w, of every layer and entry: w = 0 is not a place to be stuck at."""
    options = (f"residual.relu={relu}", f"residual.dynamic_weights={where}")
    model = tiny(f"residual={name}", *options)
    model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
    for parameter in model.connection.parameters():
        assert parameter.grad is not None
        assert (parameter.grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("layers", [4, 9])
def test_saved_activations(layers: int, tiny: Build) -> None:
    """A GRN keeps f_t; k adds the sum of the middle. So k-DCA stays below k + 2 a layer.

    That is without what the two further norms of a DCA layer keep: input, output and 1/rms.
    """
    where = f"model.layers={layers}"
    plain = saved_units(tiny("residual=plain", where))
    norms = layers * 2 * (2 + 1 / 24)

    def extra(name: str, *options: str) -> float:
        return saved_units(tiny(f"residual={name}", where, *options)) - plain

    # the last increment is kept too, for the GRN of the output
    assert max(extra(name) for name in ("grn_v1", "grn_v2", "grn_v3")) <= layers + 1.01
    assert extra("dca") <= layers + 1.01 + norms
    for k in (1, 2, 3):
        assert extra("dca_k", f"residual.k={k}") <= 2 * layers + 1.01 + norms


def test_weights_grow_linearly_with_depth_only_where_k_is_set() -> None:
    sizes = {k: [DCA(d, 2, k=k).schedule.size for d in (24, 48, 96)] for k in (2, None)}
    assert sizes[2] == [3 * (4 * d - 6) + 4 for d in (24, 48, 96)]
    assert sizes[None] == [3 * d * (d + 1) // 2 + d + 1 for d in (24, 48, 96)]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_inference_holds_k_plus_two_activations(k: int) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def layer(x: Tensor, *_: Tensor) -> Tensor:
        nonlocal most
        most = max(most, sum(storage() is not None for storage in alive))
        f = torch.randn_like(x)
        alive.append(weakref.ref(f))
        return f

    with torch.no_grad():
        DCA(12, 6, k=k)(torch.randn(2, 5, 6), [layer] * 12)
    assert most <= k + 1  # the model input comes on top; f_1 is the middle at first


def test_published_package() -> None:
    """The package's model of three layers, and its own attentions and MLPs carried by ours.

    It differs from the paper in an RMS norm before w, taken out here, in starting w at N(0, 0.01),
    and in keeping the first and the last k outputs, k large enough here to be all of them; w is
    D×1 there.
    """
    pytest.importorskip("deep_cross_attention")
    torch.manual_seed(0)
    theirs = package_model(layers=3, width=24, heads=2).double()
    connection = connection_like(theirs)
    tokens = torch.randint(31, (2, 8))
    mixed = connection(theirs.token_emb(tokens), layers_of(theirs))
    mine, expected = theirs.to_logits(theirs.norm(mixed)), theirs(tokens)
    torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)
    grn = theirs.dca_blocks[1].qkv_grn
    base = [theirs.token_emb.weight, *theirs.dca_blocks[0].ff.parameters()]
    b, *found = torch.autograd.grad(mine.square().sum(), [connection.b, *base])
    bias, *wanted = torch.autograd.grad(expected.square().sum(), [grn.bias, *base])
    for output, source in product(range(3), range(2)):
        place = connection.schedule.index(source, 1, output)
        torch.testing.assert_close(b[place], bias[output, source])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
