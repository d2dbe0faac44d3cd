"""Weighted sums over depth whose backward waits until each gradient can be written once.

After every step i of a forward the sums that read the sources so far are taken:

    y_i = Σ_j c_ij ⊙ x_j,   c_ij = b_ij, or with a part that depends on the token (depth_terms.py)

Autograd would keep every product's factors and add up each ∂x_j from as many temporaries as
there are sums that read x_j. Here a step keeps its own x_j alone. Backward keeps the ∂y_i as they
come; when it reaches step j, all sums that read x_j have been passed, and ∂x_j = Σ_i c_ij ⊙ ∂y_i
and the gradients of the weights of x_j are written in one go. A token without elements goes from
step to step, which is what puts their backwards in that order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from residual_lab.residuals.depth_schedule import Schedule, Sum
from residual_lab.residuals.depth_terms import (
    Relu,
    add_term,
    chunks,
    dynamic_gradients,
    plain_coefficient,
    project,
    static_gradients,
    without_autocast,
    working,
    working_dtype,
)


class DepthSums:
    """The sums of one forward; a new one for each.

    Args:
        schedule: who reads what.
        b: static weights, (schedule.size, 1 or D).
        w: weights of the dynamic part, with a row for each of b's (schedule.size, D), or for
            each sum, which reads all its sources with it, (sums, D); None: c is b.
        relu: where it stands, around the dynamic part or around the sum (depth_terms.py).
    """

    def __init__(
        self, schedule: Schedule, b: Tensor, w: Tensor | None = None, relu: Relu = "term"
    ) -> None:
        self.schedule, self.b, self.w, self.relu = schedule, b, w, relu
        self.shared = w is not None and len(w) != len(b)
        self.step = 0
        self.sources: list[Any] = []  # in chunks; None once nobody will read it
        self.dynamic: list[Any] = []  # w·x of each source, a row for each sum that reads it
        self.by_autograd = torch.compiler.is_compiling()  # the compiler fuses the plain sums
        if self.by_autograd:
            return
        self.gradients = _Gradients(self)
        self.token = _Weights.apply(self.gradients, b, w)
        self.rows = working(b.detach()).unbind(0)

    def append(self, *new: Tensor) -> list[Tensor]:
        """Append the step's sources; return its sums, or the newest source if there are none."""
        sums = self.schedule.sums[self.step]
        first = len(self.sources)
        if self.by_autograd:
            outputs = self._append_by_autograd(new, sums)
        elif sums or any(self.schedule.readers[first : first + len(new)]):
            *outputs, self.token = _Append.apply(self, self.step, self.token, *new)
        else:
            outputs = [new[-1]]
            self.sources += [None] * len(new)
            self.dynamic += [None] * len(new)
        for source in self.schedule.last_read[self.step]:
            self.sources[source] = self.dynamic[source] = None
        self.step += 1
        return outputs

    def _append_by_autograd(self, new: Sequence[Tensor], sums: Sequence[Sum]) -> list[Tensor]:
        for x in new:
            span = self.schedule.span(len(self.sources), self.shared)
            self.dynamic.append(None if self.w is None else (x @ self.w[span].mT).unbind(-1))
            self.sources.append(x)
        outputs = []
        for one in sums:
            total: Any = 0
            for source in reversed(self.schedule.rows[one.step]):
                z = self.dynamic[source]
                z = None if z is None else z[self.schedule.places[source, one]][..., None]
                b = self.b[self.schedule.index(source, *one)]
                total = total + plain_coefficient(b, z, self.relu) * self.sources[source]
            outputs.append(total)
        return outputs or [new[-1]]

    def take(self, new: Sequence[Tensor], sums: Sequence[Sum]) -> list[Tensor]:
        """Append ``new``; return ``sums``."""
        for x in new:
            z = None
            if self.w is not None:
                z = project(x, self.w[self.schedule.span(len(self.sources), self.shared)])
                z = z.relu_() if self.relu == "term" else z
            self.dynamic.append(z)
            self.sources.append(chunks(x))
        if not sums:
            return [new[-1].view_as(new[-1])]
        dtype = new[-1].dtype
        for source in self.schedule.rows[sums[0].step]:
            dtype = torch.promote_types(dtype, self.sources[source][0].dtype)
        shape, device = new[-1].shape, new[-1].device  # contiguous: views are written through
        totals = [torch.empty(shape, dtype=working_dtype(dtype), device=device) for _ in sums]
        for number, parts in enumerate(zip(*map(chunks, totals), strict=True)):
            for one, part in zip(sums, parts, strict=True):
                self._write(one, number, part)
        return [total.to(dtype) for total in totals]

    def _write(self, one: Sum, chunk: int, total: Tensor) -> None:
        """Write a sum of the tokens of one chunk."""
        total.zero_()
        for source in reversed(self.schedule.rows[one.step]):
            x = self.sources[source][chunk].to(total.dtype)
            z = self.dynamic[source]
            if z is not None:
                start = chunk * len(self.sources[source][0])
                z = z[self.schedule.places[source, one], start : start + len(x), None]
            add_term(total, x, self.rows[self.schedule.index(source, *one)], z, self.relu)


class _Gradients:
    """What the backwards of one forward's steps leave for those that follow."""

    def __init__(self, sums: DepthSums) -> None:
        self.schedule, self.shared, self.relu = sums.schedule, sums.shared, sums.relu
        self.learns = (sums.b.requires_grad, sums.w is not None and sums.w.requires_grad)
        self.clear()

    def clear(self) -> None:
        self.of_sums: dict[Sum, Sequence[Tensor]] = {}  # in chunks
        self.rows: Sequence[Tensor] | None = None  # of b, not its gradient
        self.of_b: Tensor | None = None
        self.of_w: Tensor | None = None

    def begin(self, b: Tensor, w: Tensor | None) -> None:
        """Forget what a backward that did not reach its end may have left."""
        self.clear()
        self.rows = working(b.detach()).unbind(0)
        self.of_b = torch.zeros_like(b, dtype=working_dtype(b.dtype)) if self.learns[0] else None
        if w is not None and self.learns[1]:
            self.of_w = torch.zeros_like(w, dtype=working_dtype(w.dtype))

    def of_source(self, source: int, x: Tensor, alias: Tensor | None, w: Tensor | None) -> Tensor:
        """Return ∂x, having added what x gives to the gradients of its weights.

        ``alias`` is the gradient of the output that was x itself, if there was one.
        """
        if alias is None:
            d_x = torch.zeros_like(
                x, dtype=working_dtype(x.dtype), memory_format=torch.contiguous_format
            )
        else:
            d_x = alias.to(working_dtype(x.dtype), copy=True, memory_format=torch.contiguous_format)
        z = None if w is None else project(x, w[self.schedule.span(source, self.shared)])
        rectified = z if z is None or self.relu == "sum" else z.relu()
        d_z = None if z is None else torch.zeros_like(z)
        start = 0
        for number, (x_c, d_x_c) in enumerate(zip(chunks(x), chunks(d_x), strict=True)):
            tokens = slice(start, start + len(x_c))
            self._terms(source, number, tokens, working(x_c), d_x_c, rectified, d_z)
            start += len(x_c)
        if z is not None and d_z is not None and w is not None:
            if self.relu == "term":
                d_z *= torch.heaviside(z, z.new_full((), 0.5))
            self._through_projection(source, x, w, d_z, d_x)
        return d_x.to(x.dtype)

    def _terms(
        self,
        source: int,
        chunk: int,
        tokens: slice,
        x: Tensor,
        d_x: Tensor,
        z: Tensor | None,
        d_z: Tensor | None,
    ) -> None:
        """Add what all sums that read ``source`` give to the gradients, for one chunk."""
        assert self.rows is not None
        scratch = torch.empty_like(x)
        weight = self.schedule.starts[source]
        for place, one in enumerate(self.schedule.readers[source]):
            if one not in self.of_sums:
                continue
            gradient, b = self.of_sums[one][chunk], self.rows[weight + place]
            d_b = None if self.of_b is None else self.of_b[weight + place]
            if z is None or d_z is None:
                static_gradients(gradient, x, b, d_x, d_b, scratch)
            else:
                z_c, d_z_c = z[place, tokens, None], d_z[place, tokens]
                dynamic_gradients(gradient, x, b, z_c, d_x, d_b, d_z_c, scratch, self.relu)

    def _through_projection(
        self, source: int, x: Tensor, w: Tensor, d_z: Tensor, d_x: Tensor
    ) -> None:
        """Add to ∂x and ∂w what z = w·x passes on."""
        span = self.schedule.span(source, self.shared)
        with without_autocast(x):
            d_z, flat = d_z.to(x.dtype), x.reshape(-1, x.shape[-1])
            d_x += (d_z.mT @ w[span].to(x.dtype)).view_as(d_x)
            if self.of_w is not None:
                self.of_w[span] += d_z @ flat


class _Weights(torch.autograd.Function):
    """Hands the weights to the steps: its backward is the last to be called."""

    @staticmethod
    def forward(ctx: Any, gradients: _Gradients, b: Tensor, w: Tensor | None) -> Tensor:
        ctx.gradients, ctx.dtypes = gradients, (b.dtype, None if w is None else w.dtype)
        return b.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        found = (ctx.gradients.of_b, ctx.gradients.of_w)
        ctx.gradients.clear()
        return None, *(
            None if g is None else g.to(dtype) for g, dtype in zip(found, ctx.dtypes, strict=True)
        )


class _Append(torch.autograd.Function):
    """One step of :class:`DepthSums`: new sources to the sums that are taken after it."""

    @staticmethod
    def forward(ctx: Any, sums: DepthSums, step: int, token: Tensor, *new: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.gradients, ctx.step, ctx.first = sums.gradients, step, len(sums.sources)
        ctx.save_for_backward(sums.b, sums.w, *new)
        return (*sums.take(new, sums.schedule.sums[step]), token.new_empty(0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients: _Gradients = ctx.gradients
        b, w, *new = ctx.saved_tensors
        schedule = gradients.schedule
        if schedule.last_step == ctx.step:  # the first to be called
            gradients.begin(b, w)
        sums = schedule.sums[ctx.step]
        for one, gradient in zip(sums, of_outputs, strict=False):
            if gradient is not None:
                gradients.of_sums[one] = chunks(working(gradient))
        alias = None if sums else of_outputs[0]
        found = [
            gradients.of_source(ctx.first + n, x, alias if n == len(new) - 1 else None, w)
            for n, x in enumerate(new)
        ]
        if ctx.step == 0:
            gradients.of_sums.clear()
        return None, None, None, *found
