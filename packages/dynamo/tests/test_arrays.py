"""NumPy on arrays and tensors: operators of the graph where they are known to say the same, breaks elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxloom_dynamo

np = pytest.importorskip("numpy", reason="torch works without NumPy")
#: torch's own methods for NumPy to call are of NumPy 1
pytestmark = [pytest.mark.cpu_only("arrays of NumPy are tensors on the CPU"), pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")]


def _inputs() -> tuple[Any, Any, torch.Tensor]:
    return np.arange(6.0).reshape(2, 3) / 4, np.arange(3), torch.arange(6.0).reshape(2, 3) - 2


def _described(value: Any) -> Any:
    """Types, dtypes and shapes exactly, elements to rounding."""
    if isinstance(value, (list, tuple)):
        return [type(value), *map(_described, value)]
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype, value.shape, np.round(np.asarray(value, complex), 5).tolist()
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, np.round(np.asarray(value.numpy(), complex), 5).tolist()
    return type(value), value


def in_place(a: Any, i: Any, t: torch.Tensor) -> Any:
    made = np.zeros((2, 3))
    made += a
    made[0] = 7
    made[:, 1:] *= 2
    view = made.T
    view[0, 0] = -1
    return made, view.shape


def writes_the_tensor(a: Any, i: Any, t: torch.Tensor) -> Any:
    u = t + 1
    u.numpy()[0] = 5
    return u


def loop(a: Any, i: Any, t: torch.Tensor) -> Any:
    total = np.zeros(3)
    for row in a:
        total = total + row
    return total, len(a), a.shape, a.ndim, a.size, a.dtype, a[0, 0].dtype, isinstance(a, np.ndarray), type(a[0, 0])


WHOLE: dict[str, Callable[[Any, Any, torch.Tensor], Any]] = {
    "from_tensor": lambda a, i, t: torch.from_numpy(np.sin(t.numpy())) * 2,
    "asarray": lambda a, i, t: [np.asarray(t) + 1, np.array(t) * 2],
    "to_tensor": lambda a, i, t: [torch.from_numpy(a) + 1, torch.as_tensor(a), torch.tensor(a), torch.as_tensor(a, dtype=torch.float32)],
    "arithmetic": lambda a, i, t: [a + 1, 2 * a, a / 3, -a, a**2, a // 2.0, a % 0.3, a - a[0], abs(a), a @ a.T],
    "promotion": lambda a, i, t: [i + 1, i + 1.5, i * a, i / 2, i.astype(np.float32) * 2.0, np.float32(2) * i, np.int8(2) + i.astype(np.int8)],
    "comparisons": lambda a, i, t: [a > 0.5, a == a, (a > 0.5) & (a < 1), np.where(a > 0.5, a, 0), np.logical_not(a > 1)],
    "reductions": lambda a, i, t: [a.sum(), np.sum(a, axis=0), a.mean(1), np.max(a), a.std(), np.prod(a, axis=1, keepdims=True), i.sum()],
    "elementwise": lambda a, i, t: [np.exp(a), np.sqrt(a), np.tanh(a), np.maximum(a, 0.5), np.clip(a, 0.2, 0.8), np.sign(a), np.round(a, 1)],
    "shapes": lambda a, i, t: [a.reshape(-1), a.T, np.transpose(a), a.ravel(), np.expand_dims(a, 0), a[None], np.squeeze(a[:1]), a.flatten()],
    "joins": lambda a, i, t: [np.concatenate([a, a]), np.stack([a, a], 1), np.vstack((a, a)), np.split(i, 3), np.tile(i, 2), np.repeat(i, 2)],
    "indexing": lambda a, i, t: [a[0], a[0, 1], a[:, 1:], a[..., ::2], a[-1], i[1], a[1][2]],
    "creation": lambda a, i, t: [np.zeros(3), np.ones((2, 2), dtype=np.float32), np.arange(4), np.full(2, 5.0), np.eye(2), np.linspace(0, 1, 5)],
    "constants": lambda a, i, t: [np.array([1, 2]) + i[:2], np.array([[1.5]]) * a, np.float32(2), np.pi * a, np.array(5.0)],
    "linalg": lambda a, i, t: [np.dot(a, i), np.matmul(a, a.T), np.linalg.norm(a), np.linalg.inv(a[:, :2] + np.eye(2)), np.einsum("ij,kj->ik", a, a)],
    "named tuples": lambda a, i, t: [np.linalg.slogdet(a[:, :2] + np.eye(2)), np.linalg.eigh(a @ a.T).eigenvalues, np.linalg.qr(a).R.shape],
    "more": lambda a, i, t: [np.cumsum(a, 1), np.diff(i), np.argmax(a), a.min(0), np.outer(i, i), np.var(a), np.mean(i), a.astype(np.int64), a.copy()],
    "in_place": in_place,
    "writes_the_tensor": writes_the_tensor,
    "loop": loop,
}

#: what breaks, and still is as in eager
BROKEN: dict[str, Callable[[Any, Any, torch.Tensor], Any]] = {
    "integer_division": lambda a, i, t: [i // 2, i % 2, 2**i],
    "order_of_equals": lambda a, i, t: np.argsort(i),
    "random": lambda a, i, t: np.random.RandomState(0).rand(2) + a[:, 0],
    "text": lambda a, i, t: str(a + 1),
    "values": lambda a, i, t: [a[a > 0.5], np.unique(i), np.nonzero(i), a + 1 if a.sum() > 0 else a - 1],
    "function_of_a_tensor": lambda a, i, t: np.sin(t),
    "containers": lambda a, i, t: [(a + 1).tolist(), list(i), float(a[0, 1]), int(i[1]), i.tobytes()],
    "errors": lambda a, i, t: pytest.raises(ValueError, lambda: a + np.ones(7)).type,
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_graphs(name: str) -> None:
    program = WHOLE[name]
    mine, theirs = _inputs(), _inputs()
    got = fxloom_dynamo.optimize("eager", fullgraph=True)(program)(*mine)
    assert _described(got) == _described(program(*theirs))
    assert _described(mine) == _described(theirs)


@pytest.mark.parametrize("name", BROKEN)
def test_breaks(name: str) -> None:
    program = BROKEN[name]
    mine, theirs = _inputs(), _inputs()
    got = fxloom_dynamo.optimize("eager")(program)(*mine)
    assert _described(got) == _described(program(*theirs))
    assert _described(mine) == _described(theirs)


def test_views_share_memory() -> None:
    def fn(a: Any, t: torch.Tensor) -> Any:
        return a.T, a[0], a + 1, t.numpy()

    a, t = np.arange(6.0).reshape(2, 3), torch.ones(3)
    transposed, row, new, of_tensor = fxloom_dynamo.optimize("eager", fullgraph=True)(fn)(a, t)
    a[0, 0], t[0] = 9, 9
    assert transposed[0, 0] == 9 and row[0] == 9 and new[0, 0] == 1 and of_tensor[0] == 9


def test_guards_on_arrays() -> None:
    """Another dtype or shape compiles anew; other elements don't."""
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    compiled = fxloom_dynamo.optimize(backend, dynamic=False)(lambda a: a * 2 + 1)
    for array in (np.ones(3), np.zeros(3), np.ones(3, np.float32), np.ones((2, 2)), np.array([1, 2]), np.zeros(3)):
        got = compiled(array)
        assert got.dtype == array.dtype and np.array_equal(got, array * 2 + 1)
    assert len(graphs) == 4


@pytest.mark.parametrize(
    "array",
    [np.array(["a", "b"]), np.array([None, 1], dtype=object), np.ones(4)[::-1], np.ma.masked_array([1.0, 2.0], [0, 1]), np.ones(2, ">f8")],
    ids=["text", "objects", "backwards", "masked", "big_endian"],
)
def test_arrays_that_are_no_tensors(array: Any) -> None:
    assert repr(fxloom_dynamo.optimize("eager")(lambda a: a[:1])(array)) == repr(array[:1])


def test_writes_into_arrays_from_outside_are_eager() -> None:
    """Their memory may be that of another array, or of a tensor."""

    def fn(a: Any, t: torch.Tensor) -> torch.Tensor:
        a += 1
        return t * 2

    shared = np.ones(3)
    got = fxloom_dynamo.optimize("eager")(fn)(shared, torch.from_numpy(shared))
    assert got.tolist() == [4, 4, 4] and shared.tolist() == [2, 2, 2]


def test_a_gradient_is_needed() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires grad"):
        fxloom_dynamo.optimize("eager")(lambda t: (t * 2).numpy())(x)


def test_under_a_compiling_backend() -> None:
    aot = pytest.importorskip("fxloom_aot", reason="capture alone")
    assert aot is not None

    def fn(a: Any, t: torch.Tensor) -> Any:
        return np.sin(a) * 2, torch.from_numpy(a) + t

    a, t = np.arange(3.0), torch.ones(3, dtype=torch.float64)
    assert _described(fxloom_dynamo.optimize("aot_eager", fullgraph=True)(fn)(a, t)) == _described(fn(a, t))


@pytest.mark.parametrize(("dynamic", "expected"), [(None, 2), (True, 1)])
def test_sizes_of_arrays(dynamic: bool | None, expected: int) -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    def fn(a: Any, t: torch.Tensor) -> Any:
        return np.sin(a).sum(0) * 2 + np.arange(a.shape[1]), torch.from_numpy(a[1:]) + t, a.reshape(a.shape[0] * 3)

    compiled = fxloom_dynamo.optimize(backend, dynamic=dynamic)(fn)
    for size in range(3, 8):
        a, t = np.arange(size * 3.0).reshape(size, 3), torch.ones(size - 1, 3, dtype=torch.float64)
        assert _described(compiled(a, t)) == _described(fn(a, t))
    assert len(graphs) == expected


@pytest.mark.parametrize("kind", [bool, np.int32, np.int64])
def test_arrays_index_tensors(kind: type) -> None:
    places = np.array([0, 1, 1], dtype=kind)

    def program(x):
        x[places] = x[places] + 1
        return x[:, np.array([0, 2])], x[np.array([[0]]), places.sum() - places.sum() + 1]

    results = [run(torch.arange(9.0).reshape(3, 3)) for run in (program, fxloom_dynamo.optimize()(program))]
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_errors_that_numpy_raises_are_raised() -> None:
    compiled = fxloom_dynamo.optimize()(lambda a: np.log(a))
    assert compiled(np.ones(2)).tolist() == [0, 0]
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
        compiled(np.zeros(2))
    assert compiled(np.ones(2)).tolist() == [0, 0]
