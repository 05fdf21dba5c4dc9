"""Compute values of a functional log from those that a call kept.

In: a functional log with plain sizes, values that are available, the caller's inputs. Out: the values asked for. What is available
is taken as it is; the rest is computed by the calls of the log, one by one, as far as what is available suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxloom_aot._torch_private import no_autocast
from fxloom_aot.functional.functional_log import FunctionalLog, has_effect, inputs_of
from fxloom_shapes import FakeTensor


class ValueUnavailable(Exception):
    """A value can't be had; says why."""


class RecomputedValues:
    """The values of one call. available: by identity in the log. input_of: the caller's, by placeholder; raises ValueUnavailable.

    private: by identity, those available that nobody but the compiled graph could have written to.
    """

    def __init__(
        self, log: FunctionalLog, available: dict[int, torch.Tensor], private: Sequence[FakeTensor], input_of: Callable[[int], torch.Tensor]
    ) -> None:
        self._log, self._known, self._private, self._input_of = log, dict(available), list(private), input_of
        self._available = available
        #: placeholders that are known to be as they were
        self._verified: set[int] = set()

    def get(self, value: FakeTensor) -> torch.Tensor:
        """The value, with grad mode off. ValueUnavailable where it can't be had."""
        known = self._known.get(id(value))
        if known is not None:
            return known
        made, inputs = self._computed(value, self._known)
        if self._log.origins[id(value)].placeholder < 0:
            self._verify(inputs - self._verified)
        self._known[id(value)] = made
        return made

    def _computed(self, value: FakeTensor, known: dict[int, torch.Tensor]) -> tuple[torch.Tensor, set[int]]:
        """The value, from what is known, and the placeholders that it was computed from besides."""
        log = self._log
        calls: set[int] = set()
        inputs: set[int] = set()
        values: dict[int, Any] = {}
        todo = [value]
        while todo:
            one = todo.pop()
            if id(one) in values:
                continue
            origin = log.origins[id(one)]
            if id(one) in known:
                values[id(one)] = known[id(one)]
            elif origin.placeholder >= 0:
                values[id(one)] = self._input_of(origin.placeholder)
                inputs.add(origin.placeholder)
            elif origin.call < 0:
                values[id(one)] = next(real for fake, real in log.constants if fake is one)
            elif origin.call not in calls:
                if has_effect(log.calls[origin.call].op):
                    raise ValueUnavailable("random numbers that the program drew were not kept")
                calls.add(origin.call)
                todo += inputs_of(log, origin.call)
        with torch.no_grad(), no_autocast():
            for number in sorted(calls):
                call = log.calls[number]
                args = _filled(call.args, values)
                kwargs = {name: _filled(argument, values) for name, argument in call.kwargs.items()}
                _bind(call.out, call.op(*args, **kwargs), values)
        made: torch.Tensor = values[id(value)]
        return made.detach() if made.requires_grad else made, inputs

    def _verify(self, inputs: set[int]) -> None:
        """Raise ValueUnavailable unless the caller's tensors, by placeholder, are what the call had.

        Writes that autograd does not count (`.data`) leave no other trace than that what the call kept is no longer what follows
        from its inputs.
        """
        if not inputs:
            return
        below = self._made_of(inputs)
        witnesses = [one for one in self._private if id(one) in below]
        independent = {key: tensor for key, tensor in self._available.items() if key not in below}
        for one in witnesses:
            others = {key: tensor for key, tensor in self._available.items() if key != id(one)}
            for known in (independent, others):  # what was drawn can't be computed, only taken
                try:
                    recomputed, used = self._computed(one, known)
                except ValueUnavailable:
                    continue
                if not are_alike(recomputed, self._available[id(one)]):
                    raise ValueUnavailable("an input was written since, unseen by autograd (`.data`)")
                self._verified |= used
                break
        if inputs - self._verified:
            raise ValueUnavailable("it is not kept, and no kept value shows whether the inputs that it is computed from were written since")

    def _made_of(self, placeholders: set[int]) -> set[int]:
        """The values, by identity, that are computed from some placeholders."""
        found = {id(self._log.placeholders[number]) for number in placeholders}
        for number in range(len(self._log.calls)):
            if any(id(one) in found for one in inputs_of(self._log, number)):
                out = self._log.calls[number].out
                found.update(id(one) for one in (out if isinstance(out, (tuple, list)) else [out]))
        return found


def _filled(nest: Any, values: dict[int, Any]) -> Any:
    kind = type(nest)
    if kind is FakeTensor:
        return values[id(nest)]
    if kind is tuple or kind is list:
        return kind([_filled(item, values) for item in nest])
    return nest


def _bind(out: Any, result: Any, values: dict[int, Any]) -> None:
    if type(out) is FakeTensor:
        values.setdefault(id(out), result)
    elif isinstance(out, (tuple, list)):
        for fake, item in zip(out, result, strict=True):
            if type(fake) is FakeTensor:
                values.setdefault(id(fake), item)


def are_alike(recomputed: torch.Tensor | None, kept: torch.Tensor | None) -> bool:
    """The same up to what another order of arithmetic makes, in relation to the largest element. None is zero."""
    if recomputed is None or kept is None:
        other = kept if recomputed is None else recomputed
        return other is None or not bool(other.detach().any())
    if kept.numel() == 0:
        return True
    if not (kept.is_floating_point() or kept.is_complex()):
        return int((recomputed != kept).sum()) <= kept.numel() // 1000  # a rounding may turn a comparison
    wide = torch.complex128 if kept.is_complex() else torch.float64
    a, b = recomputed.detach().to(wide), kept.detach().to(wide)
    difference = (a - b).abs()
    finite = difference.isfinite()
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    size = b.abs()[finite].max() if bool(finite.any()) else b.new_zeros(())
    tolerance = torch.finfo(kept.dtype).eps ** 0.5
    return not bool((difference[finite] > tolerance * size).any())
