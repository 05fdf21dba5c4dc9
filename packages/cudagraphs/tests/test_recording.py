"""Recording and replaying against a device that records nothing but the function: its replay runs it again, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fxloom_cudagraphs import PLUGIN
from fxloom_cudagraphs import recording as recording_module
from fxloom_cudagraphs.recording import Replayed, wrap
from fxloom_interfaces.replayer import ReplaySignature, check_replayer
from fxloom_interfaces.telemetry import Event, ReplaySkipped, listen


class ReplayingDevice:
    """Replays by running the function again and copying its results to where the first run left them, as a GPU would."""

    def __init__(self, index: int) -> None:
        self.warm_ups = self.records = self.replays = 0

    def warm_up(self, run: Callable[[], Any]) -> Any:
        self.warm_ups += 1
        return run()

    def record(self, run: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        self.records += 1
        results = run()
        for result, again in zip(results, run(), strict=True):
            if isinstance(result, torch.Tensor) and result is not again:  # not an input
                result.fill_(float("nan"))  # recording computes nothing

        def replay() -> None:
            self.replays += 1
            for place, value in zip(results, run(), strict=True):
                if isinstance(place, torch.Tensor) and place is not value:
                    place.copy_(value)

        return replay, results


def make(fn: Callable[[list[Any]], Sequence[Any]], **signature: Any) -> tuple[Any, ReplayingDevice]:
    device = ReplayingDevice(0)
    wrapped = wrap(fn, ReplaySignature(devices=("cpu",), name="f", **signature), lambda index: device, "cpu")
    return wrapped, device


def scaled_sum(inputs: list[Any]) -> list[Any]:
    weight, x = inputs
    inputs.clear()  # a compiled graph may
    return [x * weight + 1, x.sum()]


def test_warm_up_then_record_then_replay() -> None:
    replayed, device = make(scaled_sum, static_inputs=(0,))
    weight = torch.randn(4)
    for call in range(5):
        x = torch.randn(3, 4)
        out, total = replayed([weight, x])
        torch.testing.assert_close(out, x * weight + 1)
        torch.testing.assert_close(total, x.sum())
        assert (device.warm_ups, device.records, device.replays) == (1, min(call, 1), call)


def test_results_held_by_the_caller_stay_valid() -> None:
    replayed, _ = make(scaled_sum, static_inputs=(0,))
    weight = torch.ones(4)
    held = []
    for value in range(4):
        held.append((replayed([weight, torch.full((3, 4), float(value))])[0], value + 1.0))
    for out, expected in held:
        assert torch.equal(out, torch.full((3, 4), expected))


def test_each_shape_and_layout_is_recorded_once() -> None:
    replayed, device = make(scaled_sum, static_inputs=(0,))
    weight = torch.randn(4)
    inputs = [torch.randn(3, 4), torch.randn(5, 4), torch.randn(4, 3).t()]
    for _ in range(3):
        for x in inputs:
            torch.testing.assert_close(replayed([weight, x])[0], x * weight + 1)
    assert device.records == 3
    assert device.warm_ups == 3


def test_new_value_of_a_static_input_is_seen_and_new_address_records_again() -> None:
    replayed, device = make(scaled_sum, static_inputs=(0,))
    weight, x = torch.randn(4), torch.randn(3, 4)
    for _ in range(3):
        replayed([weight, x])
    weight.fill_(2.0)
    torch.testing.assert_close(replayed([weight, x])[0], x * 2 + 1)
    assert device.records == 1
    other = torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(replayed([other, x])[0], x * other + 1)
    assert device.records == 2


def test_numbers_are_part_of_the_recording() -> None:
    replayed, device = make(lambda inputs: [inputs[0] * inputs[1]])
    x = torch.randn(3)
    for number in (2, 3, 2, 3, 2, 3):
        torch.testing.assert_close(replayed([x, number])[0], x * number)
    assert device.records == 2


def test_strides_of_results_are_kept() -> None:
    replayed, _ = make(lambda inputs: [(inputs[0] + 1).t()])
    for _ in range(3):
        out = replayed([torch.randn(3, 5)])[0]
        assert out.stride() == (1, 5)


def test_a_result_that_is_an_input_is_the_callers_tensor() -> None:
    replayed, device = make(lambda inputs: [inputs[0], inputs[0] + 1])
    for _ in range(3):
        x = torch.randn(3)
        same, other = replayed([x])
        torch.testing.assert_close(other, x + 1)
        assert same is x


def skips(run: Callable[[], Any]) -> list[str]:
    events: list[Event] = []
    with listen(events.append):
        run()
    return [event.reason for event in events if isinstance(event, ReplaySkipped)]


def test_mutated_static_input_is_replayed_in_place() -> None:
    def count(inputs: list[Any]) -> list[Any]:
        inputs[0].add_(1)
        return [inputs[0] * 2]

    device = ReplayingDevice(0)
    replayed = wrap(count, ReplaySignature((0,), (0,), ("cpu",), "f"), lambda index: device, "cpu")
    assert isinstance(replayed, Replayed)


def test_what_cannot_be_replayed_runs_and_says_why() -> None:
    def double(inputs: list[Any]) -> list[Any]:
        return [inputs[0] * 2]

    for signature, reason in (
        (ReplaySignature(devices=("cuda",), mutated_inputs=(0,)), "writes to inputs [0]"),
        (ReplaySignature(devices=("cpu", "cuda")), "several kinds of device"),
        (ReplaySignature(devices=("cpu",)), "uses no cuda device"),
    ):
        wrapped: list[Any] = []
        (said,) = skips(lambda signature=signature: wrapped.append(PLUGIN.wrap(double, signature)))
        assert reason in said
        assert torch.equal(wrapped[0]([torch.ones(2)])[0], torch.full((2,), 2.0))


def test_input_on_another_device_is_said_once() -> None:
    device = ReplayingDevice(0)
    replayed = wrap(lambda inputs: [inputs[0] * 2], ReplaySignature(devices=("cuda",)), lambda index: device)
    said = skips(lambda: [replayed([torch.ones(2)]) for _ in range(3)])
    assert said == ["graph: input 0 is on cpu"]
    assert device.warm_ups == 0


def test_too_many_shapes_run_unrecorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "MAX_RECORDINGS", 2)
    replayed, device = make(lambda inputs: [inputs[0] * 2])

    def run() -> None:
        for size in (1, 2, 3, 4):
            assert torch.equal(replayed([torch.ones(size)])[0], torch.full((size,), 2.0))

    assert len(skips(run)) == 1
    assert device.warm_ups == 2


def test_plugin_imports_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; import fxloom_cudagraphs.plugin; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
    assert check_replayer(PLUGIN) is PLUGIN


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a real GPU")
def test_on_a_real_gpu() -> None:
    replayed = PLUGIN.wrap(scaled_sum, ReplaySignature(static_inputs=(0,), devices=("cuda",)))
    weight = torch.randn(4, device="cuda")
    held = []
    for _ in range(6):
        x = torch.randn(3, 4, device="cuda")
        held.append((replayed([weight, x]), x))
    for (out, total), x in held:
        torch.testing.assert_close(out, x * weight + 1)
        torch.testing.assert_close(total, x.sum())
