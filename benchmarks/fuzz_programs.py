"""Random programs of tensor operators: how one is drawn, printed, and made smaller.

A program is data: inputs (shape, dtype, layout, kind of values, seed) and statements, each a line of the table below with names for
its holes. Drawing runs every statement eagerly on the CPU, so what eager refuses is drawn again. No statement names a size, so
that a program runs with other sizes too.

Left out, because eager's own answer depends on the device, the vector width or the order of threads: casts of floats that don't
fit the integer type, integer division by 0 on the CPU (it raises) and of the least integer by -1, writes to one place twice,
which index a maximum with ties has beyond `argmax`, sorting that isn't stable, the sign of a NaN, the gradient of `hardtanh` at NaN
(0 or not, by layout and device), and the gradient of `prod`, whose strides depend on whether an element is 0.
"""

from __future__ import annotations

import dataclasses
import random
import string
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SIZES = (0, 1, 1, 2, 3, 3, 7, 7, 16, 33, 257, 1030)
LAYOUTS = ("contiguous", "contiguous", "transposed", "channels_last", "expanded", "gaps", "offset")
LARGEST = 20000
SCALARS = ("0", "1", "-1", "2", "3", "255", "-7", "70000", "0.5", "-1.5", "1e-8", "0.0", "-0.0", "float('inf')", "float('nan')", "True", "2.0")

#: statements, one a line, by what their results are. Holes: a, b, c any tensor (b and c broadcast with a), f and g of floats, i and j
#: of integers, m, n of booleans; s a number, d a dimension of the first tensor, t a dtype, D one of floats.
EXACT = """
{a} + {b} ; {a} - {b} ; {a} + {s} ; {s} - {a} ; torch.add({a}, {b}, alpha=2) ; -{a} ; {a}.abs() ; {a}.sign() ; {f}.floor() ; {f}.ceil() ; {f}.trunc() ; {f}.round()
torch.maximum({a}, {b}) ; torch.minimum({a}, {b}) ; torch.fmax({a}, {b}) ; torch.fmin({a}, {b}) ; torch.copysign({f}, {g}.nan_to_num(1.0)) ; torch.heaviside({f}, {f})
{f}.isnan() ; {a}.isfinite() ; {a}.isinf() ; {a}.nan_to_num(1.0).signbit() ; {f}.nan_to_num(0.5, 7.0, -7.0) ; {a}.logical_not() ; {a}.bool() ; {i}.bitwise_not() ; ~{m}
{a} == {b} ; {a} != {b} ; {a} < {b} ; {a} >= {b} ; {a} == {s} ; {a} > {s} ; {a} <= {s} ; {i} == 0 ; torch.logical_and({a}, {b}) ; torch.logical_xor({a}, {b})
torch.where({m}, {a}, {b}) ; torch.where({m}, {s}, {a}) ; torch.where({a} > 0, {a}, {b}) ; {a}.masked_fill({m}, {s}) ; {m} & {n} ; {m} | {n} ; {i} & {j} ; {i} ^ {j} ; {i} & 15
{a}.clamp(-2, 2) ; {a}.clamp(min={s}) ; {a}.clamp(max={s}) ; torch.clamp({a}, min={b}) ; F.relu({a}) ; F.hardtanh({f}.nan_to_num(0.5)) ; F.threshold({a}, 0.5, 2) ; F.relu6({a}.nan_to_num(0.5))
{i} << {j} ; {i} >> {j} ; {i} >> 1 ; {i} << 3 ; {i} // ({j} & 15 | 1) ; {i} % ({j} & 7 | 1) ; torch.div({i}, {j} & 15 | 1, rounding_mode='trunc') ; torch.fmod({i}, {j} & 7 | 1) ; {i} // 3 ; {i} % 255 ; {i} % -7
{i} * {j} ; {i} * 3 ; {i} ** 2 ; {i} ** ({j} & 3) ; {i}.square() ; {a}.to({t}) ; {a}.to({D}) ; {f}.nan_to_num(0, 0, 0).clamp(-120, 120).to(torch.int8) ; {f}.nan_to_num(0, 0, 0).clamp(0, 250).to(torch.uint8)
{f}.nan_to_num(0, 0, 0).clamp(-30000, 30000).to(torch.int16) ; {f}.nan_to_num(0, 0, 0).clamp(-1e9, 1e9).to(torch.int64) ; {f}.frac() ; {f}.nan_to_num(0, 0, 0).clamp(-99, 99).int() ; {f}.half().float() ; {f}.bfloat16().float()
{a}.amax({d}) ; {a}.amin({d}, keepdim=True) ; {a}.amax() ; {a}.argmax({d}) ; {a}.argmin({d}, keepdim=True) ; {a}.argmax() ; {a}.any({d}) ; {a}.all() ; {a}.any() ; {a}.all({d}, keepdim=True) ; {a}.amax((0, -1))
{i}.sum({d}) ; {i}.sum() ; {m}.sum({d}, keepdim=True) ; {i}.prod({d}) ; {i}.cumsum({d}) ; {a}.count_nonzero({d}) ; {i}.sum({d}, dtype=torch.int32) ; {a}.sort({d}, stable=True)[0]
{a}.flip({d}) ; torch.cat([{a}, {b}], {d}) ; torch.cat([{a}, {a}[:1]]) ; torch.stack([{a}, {b}], {d}) ; {a}.roll(1, {d}) ; {a}.tril() ; {a}.triu(1) ; {a}.clone() ; {a}.contiguous() ; {a}.repeat_interleave(2, {d})
F.pad({a}, (1, 2)) ; F.pad({a}, (1, 0, 0, 1), value=3) ; F.pad({a}, (-1, 1)) ; {a}.repeat(2, *[1] * ({a}.dim() - 1)) ; torch.cat([{a}.flatten(), {b}.flatten()]) ; F.pad({f}[None], (1, 1), mode='reflect') ; {a}.rot90()
{a}.index_select({d}, {i}.flatten().long() % {a}.shape[{d}]) ; {a}[{i}.long() % {a}.shape[0]] ; {a}.gather({d}, {a}.argmax({d}, keepdim=True)) ; {a}[..., {i}.long() % {a}.shape[-1]] ; F.embedding({i}.long() % {f}.shape[0], F.pad({f}, (0, 1)))
{a}.take_along_dim({i}.long() % {a}.shape[{d}], {d}) ; {a}.scatter({d}, {a}.argmin({d}, keepdim=True), 5) ; {a}.index_fill({d}, {i}.flatten()[:3].long() % {a}.shape[{d}], 2) ; {a}.index_copy(0, torch.arange({a}.shape[0], device={a}.device).flip(0), {a})
torch.zeros_like({a}) ; torch.full_like({a}, 3) ; torch.arange({a}.shape[0], device={a}.device) ; {a}.new_ones({a}.shape) ; {a}.select_scatter({b}, {d}, 0) ; {a}.slice_scatter({a}[1:], 0, 1) ; {a}.diff(dim={d})
"""
#: floats that are rounded, or approximated, in more than one legal way
INEXACT = """
{a} * {b} ; {a} * {s} ; {a} * 2.5 ; {a} / {b} ; {s} / {a} ; {a} / 3 ; {f} // {g} ; {f} % {g} ; {f} % 3 ; torch.fmod({f}, {g}) ; torch.div({f}, {g}, rounding_mode='trunc') ; {f}.reciprocal() ; {i} / {j} ; {i} / 7
{a}.exp() ; {a}.log() ; {f}.exp2() ; {a}.expm1() ; {a}.log1p() ; {f}.sqrt() ; {i}.sqrt() ; {f}.rsqrt() ; {a}.sin() ; {a}.cos() ; {a}.tanh() ; {a}.sigmoid() ; {f}.erf() ; {f}.log2() ; {f}.atan() ; {f}.clamp(-1, 1).asin() ; {f}.sinh()
{f} ** 2 ; {f} ** 3 ; {f} ** 0.5 ; {f} ** -1 ; {f} ** {s} ; {f} ** {g} ; 2 ** {f} ; {f} ** {i} ; {f}.square() ; torch.atan2({f}, {g}) ; torch.hypot({f}, {g}) ; torch.logaddexp({f}, {g}) ; torch.xlogy({f}, {g})
F.gelu({f}) ; F.gelu({f}, approximate='tanh') ; F.silu({f}) ; F.softplus({f}) ; F.elu({f}) ; F.leaky_relu({f}) ; F.logsigmoid({f}) ; F.mish({f}) ; F.hardswish({f}) ; F.hardsigmoid({f}.float())
"""
#: floats that are folded in some order, or more than one step in which what cancels may be rounded
FOLDS = """
{f}.sum({d}) ; {f}.sum() ; {f}.sum({d}, keepdim=True) ; {f}.mean({d}) ; {f}.mean() ; {f}.mean((0, -1), keepdim=True) ; {f}.var({d}) ; {f}.var({d}, correction=0, keepdim=True) ; {f}.std() ; {f}.sum((0, -1)) ; {f}.nansum({d}) ; {f}.sum({d}, dtype=torch.float64) ; {i}.sum({d}, dtype={D})
{f}.detach().prod({d}) ; {f}.logsumexp({d}) ; {f}.softmax({d}) ; F.log_softmax({f}, {d}) ; {f}.cumsum({d}) ; {f}.clamp(-1, 1).cumprod({d}) ; {f}.norm() ; {f}.norm(dim={d}) ; {f}.float().mean({d}) ; {f}.abs().norm(1, {d}) ; {f}.softmax(-1, dtype=torch.float32)
torch.lerp({f}, {f}, 0.3) ; torch.addcmul({f}, {f}, {f}, value=0.5) ; torch.addcdiv({f}, {f}, {f}.abs() + 1) ; F.layer_norm({f}, {f}.shape[-1:]) ; F.mse_loss({f}, {f}) ; F.normalize({f}, dim={d}) ; {f} @ {f}.mT ; {f}.flatten(1) @ {f}.flatten(1).T ; {f}.mT @ {f} ; F.linear({f}, {f}[:3].flatten(1)) ; {f}.var_mean({d})[1]
{f}.index_add(0, {i}.flatten().long() % {f}.shape[0], {f}[:1].expand({i}.numel(), *{f}.shape[1:])) ; {f}.scatter_add({d}, {i}.long() % {f}.shape[{d}], {g}) ; torch.zeros_like({f}).index_put(({i}.long() % {f}.shape[0],), {f}[{i}.long() % {f}.shape[0]], accumulate=True)
"""
VIEWS = """
{a}.transpose({d}, -1) ; {a}.transpose(0, 1) ; {a}[::2] ; {a}[1:] ; {a}[..., ::3] ; {a}[..., 1:-1] ; {a}[0] ; {a}[..., -1] ; {a}.unsqueeze({d}) ; {a}.squeeze() ; {a}.flatten() ; {a}.reshape(-1) ; {a}.movedim(0, -1) ; {a}.diagonal()
{a}.expand(3, *{a}.shape) ; {a}[:1].expand_as({a}) ; {a}.reshape({a}.shape[::-1]) ; {a}.permute(*range({a}.dim())[::-1]) ; {a}.reshape({b}.shape) ; {a}.chunk(2, {d})[0] ; {a}.split(2, {d})[-1] ; {a}[None] ; {a}[..., None] ; {a}.narrow({d}, 1, 1) ; {a}.unfold({d}, 2, 1) ; {a}[:, ::2]
"""
WRITES = """
{a}.add_({b}) ; {a}.sub_(1) ; {a}.copy_({b}) ; {a}.zero_() ; {a}.fill_({s}) ; {a}[::2].add_(1) ; {a}[..., 0].copy_({b}[..., 0]) ; {a}.clamp_(-1, 1) ; {a}.masked_fill_({m}, {s}) ; {a}.neg_() ; {a}[1:].fill_(2) ; {a}.mT.add_({b}.mT) ; {a}.flip(0).add_(1)
{i}.mul_(3) ; {m}.logical_not_() ; {a}[..., ::2].neg_() ; {a}.relu_() ; {i}.bitwise_and_(7) ; {a}.squeeze().abs_() ; {a}.triu_() ; {a}.index_fill_({d}, {i}.flatten()[:2].long() % {a}.shape[{d}], 1) ; {a}.where({m}, {b}).neg_()
"""
#: on a GPU alone: eager's quotients by 0 are some number there, which is masked
DEVICE_ONLY = "torch.where({j} == 0, {i}, {i} // {j}) ; torch.where({j} == 0, {i}, {i} % {j})"


def lines(text: str) -> list[str]:
    return [line for line in text.replace("\n", " ; ").split(" ; ") if "{" in line]


TABLE = {"exact": lines(EXACT), "inexact": lines(INEXACT), "fold": lines(FOLDS), "view": lines(VIEWS), "write": lines(WRITES), "device": lines(DEVICE_ONLY)}


def tensor(shape: tuple[int, ...], dtype: torch.dtype, layout: str = "contiguous", values: str = "normal", seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """An input. values: normal; whole (few numbers, many ties); special (NaN, infinities, -0.0, subnormals, extremes among others)."""
    gen = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        made = torch.randint(0, 2, shape, generator=gen).bool()
    elif not dtype.is_floating_point:
        made = torch.randint(0, 128, shape, generator=gen).to(dtype) if values == "normal" else torch.randint(-3, 4, shape, generator=gen).to(dtype)
        info = torch.iinfo(dtype)
        odd = [info.min, info.max, 0, -1 if info.min else 1, info.max - 1]
    else:
        made = (torch.randn(shape, generator=gen, dtype=torch.float64) * 2).to(dtype)
        if values == "whole":
            made = made.round()
        limits = torch.finfo(dtype)
        odd = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, limits.tiny / 4, limits.max, limits.min / 3, limits.eps]  # extremes that don't cancel
    if values == "special" and dtype != torch.bool:
        which = torch.randint(0, 4 * len(odd), shape, generator=gen)
        for number, value in enumerate(odd):
            made = torch.where(which == number, torch.tensor(value, dtype=dtype), made)
    made = made.to(device)
    if layout == "transposed" and len(shape) > 1:
        return made.mT.contiguous().mT
    if layout == "channels_last" and len(shape) == 4:
        return made.contiguous(memory_format=torch.channels_last)
    if layout == "expanded" and len(shape) > 0:
        return made[:1].expand(shape)
    if layout in ("gaps", "offset") and len(shape) > 0:
        step = 2 if layout == "gaps" else 1
        room = torch.zeros((*shape[:-1], shape[-1] * step + 3), dtype=dtype, device=device)
        view = room[..., 3 : 3 + shape[-1] * step : step] if shape[-1] else room[..., 3:]
        return view.copy_(made)
    return made


@dataclass(frozen=True)
class Input:
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    values: str
    seed: int
    grad: bool

    def source(self) -> str:
        text = f"tensor({self.shape}, {self.dtype}, {self.layout!r}, {self.values!r}, {self.seed})"
        return text + ".requires_grad_()" if self.grad else text

    def make(self, device: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        made = tensor(self.shape, self.dtype, self.layout, self.values, self.seed, device)
        if dtype is not None and self.dtype.is_floating_point:
            made = made.to(dtype)
        return made.requires_grad_() if self.grad else made


@dataclass(frozen=True)
class Statement:
    """target: the name of the result. kind: its list in TABLE. holes: texts for the template's."""

    target: str
    kind: str
    template: str
    holes: dict[str, str]

    @property
    def uses(self) -> set[str]:
        return {text for text in self.holes.values() if text[0] in "xv"}

    def source(self) -> str:
        text = self.template.format(**self.holes)
        return text if self.kind == "write" else f"{self.target} = {text}"


@dataclass(frozen=True)
class Program:
    """dynamic: to be compiled so, and called with `sizes` too: what stands in the place of a size in each further call."""

    inputs: dict[str, Input]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    dynamic: bool = False
    sizes: tuple[dict[int, int], ...] = ()

    def function(self) -> str:
        body = "".join(f"    {statement.source()}\n" for statement in self.statements)
        return f"def program({', '.join(self.inputs)}):\n{body}    return {', '.join(self.outputs)},\n"

    def source(self) -> str:
        """As text that runs beside this module."""
        calls = [", ".join(given.source() for given in at.inputs.values()) for at in self.calls()]
        option = ", dynamic=True" if self.dynamic else ""
        return (
            f"import torch, fxloom\nimport torch.nn.functional as F\nfrom fuzz_programs import tensor\n\n{self.function()}\ncompiled = fxloom.compile(program{option})\n"
            + "".join(f"print(program({call}), compiled({call}))\n" for call in calls)
        )  # fmt: skip

    def perturbed(self) -> str:
        """The function with what may legally be rounded otherwise perturbed where it is read: by `_p`, with what is exact as it is.

        Read by folds, also exact values are perturbed: their order is free.
        """
        rough: set[str] = set()
        names = list(self.inputs)
        text = f"def program({', '.join(names)}):\n"
        for statement in self.statements:
            tainted = bool(statement.uses & rough)
            holes = {
                hole: f"_p({name})" if (statement.kind == "fold" or name in rough) and name in names else name
                for hole, name in statement.holes.items()
            }  # fmt: skip
            if statement.kind == "view":
                holes = statement.holes
            elif statement.kind == "write":
                first = string.Formatter().parse(statement.template)
                written = next(hole for _, hole, _, _ in first if hole)
                holes[written] = statement.holes[written]
                rough.update(names if tainted else ())
            if statement.kind in ("inexact", "fold") or (statement.kind == "view" and tainted):
                rough.add(statement.target)
            names.append(statement.target)
            text += f"    {dataclasses.replace(statement, holes=holes).source()}\n"
        return text + f"    return {', '.join(f'_p({name})' if name in rough else name for name in self.outputs)},\n"

    def calls(self) -> list[Program]:
        """Itself with the inputs of each call."""
        found = [self]
        for sizes in self.sizes:
            inputs = {name: dataclasses.replace(given, shape=tuple(sizes.get(n, n) for n in given.shape), seed=given.seed + 1) for name, given in self.inputs.items()}
            found.append(dataclasses.replace(self, inputs=inputs))
        return found


def compiled_source(text: str, extra: dict[str, Any] | None = None) -> Any:
    """The function of a program's text."""
    scope: dict[str, Any] = {"torch": torch, "F": F, **(extra or {})}
    exec(text, scope)
    return scope["program"]


# ---- drawing ----------------------------------------------------------------------------------------------------------------


def draw(seed: int, *, device: str = "cpu", floats: tuple[torch.dtype, ...] = FLOATS) -> Program:
    """The program of a seed. floats: dtypes that it may have."""
    rng = random.Random(seed)
    trained, dynamic = rng.random() < 0.4, rng.random() < 0.2
    sizes = rng.sample(SIZES, 3)
    inputs: dict[str, Input] = {}
    values: dict[str, torch.Tensor] = {}
    for number in range(rng.randint(2, 5)):
        shape: tuple[int, ...] = tuple(1 if rng.random() < 0.15 else size for size in sizes[-n:]) if (n := rng.choice((0, 1, 1, 2, 2, 3))) else ()
        if len(shape) == 3 and rng.random() < 0.3:
            shape = (2, *shape)
        while torch.Size(shape).numel() > LARGEST:
            shape = shape[1:]
        dtype = rng.choice(floats) if number == 0 or rng.random() < (0.8 if trained else 0.45) else rng.choice((*INTEGERS, torch.bool))
        given = Input(shape, dtype, rng.choice(LAYOUTS), rng.choice(("normal", "normal", "whole", "special")), rng.randrange(1000), False)
        if trained and dtype.is_floating_point and given.layout != "expanded":
            given = dataclasses.replace(given, grad=True, values="normal" if given.values == "special" and rng.random() < 0.7 else given.values)
        inputs[f"x{number}"] = given
        values[f"x{number}"] = given.make("cpu")
    statements: list[Statement] = []
    wanted = rng.choice((5, 8, 12, 20, 30))
    weights = {"exact": 45, "inexact": 22, "fold": 10, "view": 14, "write": 5 if not trained else 2, "device": 1 if device != "cpu" else 0}
    for _ in range(wanted * 30):
        if len(statements) == wanted:
            break
        kind = rng.choices(list(weights), list(weights.values()))[0]
        statement = draw_statement(rng, kind, values, f"v{len(statements)}", floats)
        if statement is None:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                holes = statement.holes
                if kind == "device":  # what is drawn here is drawn on the CPU, where this raises
                    holes = {**holes, "j": f"({holes['j']} | 1)"}
                result = eval(statement.template.format(**holes), {"torch": torch, "F": F}, values)
        except Exception:
            if rng.random() < 0.002:  # the program ends here, in eager and compiled
                statements.append(statement)
                break
            continue
        if not isinstance(result, torch.Tensor) or result.numel() > LARGEST or result.dim() > 6:
            continue
        statements.append(statement)
        if kind != "write":
            values[statement.target] = result
    unused = [name for name in values if name[0] == "v" and not any(name in s.uses for s in statements)]
    outputs = [name for name in values if (name in unused and rng.random() < 0.9) or rng.random() < 0.12] or list(values)[-1:]
    others = tuple({n: rng.choice((2, 5, 8, 31)) for n in dict.fromkeys(sizes) if n > 1} for _ in range(2)) if dynamic else ()
    return Program(inputs, tuple(statements), tuple(outputs), dynamic, others)


def draw_statement(
    rng: random.Random, kind: str, values: dict[str, torch.Tensor], target: str, floats: tuple[torch.dtype, ...]
) -> Statement | None:
    """One whose tensors are there and broadcast, mostly; None where none is of a dtype that it takes."""
    template = rng.choice(TABLE[kind])
    if "bfloat16" in template and torch.bfloat16 not in floats:
        return None
    holes: dict[str, str] = {}
    first: torch.Tensor | None = None
    for hole in dict.fromkeys(hole for _, hole, _, _ in string.Formatter().parse(template) if hole):
        if hole in "sdtD":
            continue
        wanted = {"f": is_float, "g": is_float, "i": is_integer, "j": is_integer, "m": is_bool, "n": is_bool}.get(hole, is_any)
        fitting = [name for name, value in values.items() if wanted(value)]
        near = [name for name in fitting if first is not None and broadcast(first, values[name])]
        if near and rng.random() < 0.9:
            fitting = near
        if not fitting:
            return None
        # what was made last is read more often: deep programs rather than broad ones
        holes[hole] = fitting[-1 - min(int(rng.expovariate(0.35)), len(fitting) - 1)]
        first = values[holes[hole]] if first is None else first
    rank = first.dim() if first is not None else 0
    holes |= {"s": rng.choice(SCALARS), "d": str(rng.randrange(-rank, rank)) if rank else "0", "t": str(rng.choice(floats)), "D": str(rng.choice(floats))}
    if first is not None and not first.is_floating_point():
        holes["t"] = str(rng.choice((*floats, *INTEGERS, torch.bool)))
    return Statement(target, kind, template, {hole: text for hole, text in holes.items() if "{" + hole + "}" in template})


def is_float(value: torch.Tensor) -> bool:
    return value.is_floating_point()


def is_integer(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and value.dtype != torch.bool


def is_bool(value: torch.Tensor) -> bool:
    return value.dtype == torch.bool


def is_any(value: torch.Tensor) -> bool:
    return True


def broadcast(left: torch.Tensor, right: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(left.shape, right.shape)
    except RuntimeError:
        return False
    return True


# ---- making smaller ---------------------------------------------------------------------------------------------------------


def without_unused(program: Program) -> Program:
    """What no output and no write needs is dropped."""
    needed = set(program.outputs)
    kept: list[Statement] = []
    for statement in reversed(program.statements):
        if statement.target in needed or statement.kind == "write":
            needed |= statement.uses
            kept.insert(0, statement)
    inputs = {name: given for name, given in program.inputs.items() if name in needed}
    return dataclasses.replace(program, inputs=inputs or program.inputs, statements=tuple(kept))


def smaller(program: Program) -> list[Program]:
    """Candidates that are simpler by one step, the boldest first."""
    found: list[Program] = []
    if len(program.outputs) > 1:
        found += [dataclasses.replace(program, outputs=(name,)) for name in program.outputs]
        found += [dataclasses.replace(program, outputs=tuple(n for n in program.outputs if n != name)) for name in program.outputs]
    if program.sizes:
        found += [dataclasses.replace(program, sizes=()), dataclasses.replace(program, sizes=program.sizes[:1]), dataclasses.replace(program, dynamic=False, sizes=())]
    for at in reversed(range(len(program.statements))):
        statement = program.statements[at]
        rest = program.statements[:at] + program.statements[at + 1 :]
        if statement.kind == "write":
            found.append(dataclasses.replace(program, statements=rest))
            continue
        for name in sorted(statement.uses):  # an operand in the place of the result
            renamed = tuple(dataclasses.replace(s, holes={hole: name if text == statement.target else text for hole, text in s.holes.items()}) for s in rest)
            found.append(dataclasses.replace(program, statements=renamed, outputs=tuple(name if n == statement.target else n for n in program.outputs)))
    for name, given in program.inputs.items():
        for simpler in ({"layout": "contiguous"}, {"values": "normal"}, {"grad": False}, {"shape": given.shape[1:]}, {"shape": (*given.shape[:-1], 3)} if given.shape else {}):
            changed = dataclasses.replace(given, **simpler)  # type: ignore[arg-type]
            if changed != given:
                found.append(dataclasses.replace(program, inputs={**program.inputs, name: changed}))
    unique: list[Program] = []
    for candidate in map(without_unused, found):
        if candidate != program and candidate not in unique:
            unique.append(candidate)
    return unique
