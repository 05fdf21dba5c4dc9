"""The device operations that recording needs, as one small object, so that all else is tested without a GPU.

In: a function that launches work. Out: its results (`warm_up`), or a function that replays the work with the results that it
leaves (`record`). Invariant: recordings of one `CudaDevice` share a memory pool, so no two of them run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Device(Protocol):
    """A device whose work can be recorded."""

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """`run()` beside the current stream, joined with it before and after; libraries make their workspaces here."""
        ...

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """(replay, what `run` returned). `run` is recorded, not executed; its results are valid after `replay()`."""
        ...


class CudaDevice:
    """One CUDA device and the memory pool that its recordings share.

    Recordings of one wrapped callable share a pool: they never run at the same time, and their results are copied out before
    the next one runs.
    """

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None  # torch's own is on the device of the process's first recording

    @contextmanager
    def _side_stream(self) -> Iterator[torch.cuda.Stream]:
        stream = torch.cuda.Stream(self.device)
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield stream
        current.wait_stream(stream)

    def warm_up(self, run: Callable[[], Any]) -> Any:
        with torch.cuda.device(self.device), self._side_stream() as stream:
            results = run()
            for result in results:
                if isinstance(result, torch.Tensor):
                    result.record_stream(torch.cuda.current_stream(self.device))
                    result.record_stream(stream)
        return results

    def record(self, run: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            results = run()
        return graph.replay, results
