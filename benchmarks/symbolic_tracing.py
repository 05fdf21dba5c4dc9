"""What symbolic sizes cost while a program is traced: BERT-base, batch and sequence dynamic against static.

    python benchmarks/symbolic_tracing.py

Traced are capture and AOT (forward; the backend returns constants). Prints the number of guards on sizes, CPU seconds for both,
the least of rounds in turn, and the ratio (wanted: at most 5 guards, at most 1.5 times).
"""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers

import fxloom
from fxloom_aot import aot_graph
from fxloom_dynamo import optimize
from fxloom_dynamo.guard.guards import GuardKind

ROUNDS = 7


def trace(model: torch.nn.Module, ids: torch.Tensor, dynamic: bool) -> tuple[float, int]:
    """(seconds of capture and AOT, guards on relations of sizes) of one fresh compilation."""
    fxloom.reset()
    frames: list[Any] = []
    spent: list[float] = []

    def compiler(gm: torch.fx.GraphModule, signature: Any) -> Any:
        spent.append(time.process_time())
        return gm.forward if signature is None else lambda inputs: gm.forward(*inputs)

    compiled = optimize(lambda gm, inputs: aot_graph(gm, inputs, compiler=compiler), dynamic=dynamic, on_capture=frames.append)(model)
    start = time.process_time()
    with torch.no_grad():
        compiled(ids)
    guards = [guard for frame in frames for guard in frame.guards if guard.kind is GuardKind.SIZES]
    return spent[0] - start, len(guards)


def main() -> None:
    model = transformers.BertModel(transformers.BertConfig()).eval()
    ids = torch.randint(3, 1000, (2, 96))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    guards = 0
    trace(model, ids, False), trace(model, ids, True)
    for _ in range(ROUNDS):
        for dynamic in (False, True):
            spent, count = trace(model, ids, dynamic)
            seconds[dynamic].append(spent)
            guards = max(guards, count)
    static, symbolic = (min(seconds[dynamic]) for dynamic in (False, True))
    print(f"guards on sizes {guards}; static {static:.3f} s, symbolic {symbolic:.3f} s, {symbolic / static:.2f} times")


if __name__ == "__main__":
    main()
