"""CPython's own test methods inside a compiled region: outcomes compared with plain Python, breaks counted by reason.

Each method of `Lib/test` is called as

    def f(x):
        y = x + 1
        method()
        return y * 2

(a) with graph breaks allowed: its outcome (passes, fails, is skipped) has to be plain Python's; (b) with `fullgraph=True`:
it counts as captured whole when it gives one graph and the right result. `setUp` and `tearDown` run outside.

    python benchmarks/cpython_tests.py                       # all files, both modes
    python benchmarks/cpython_tests.py test_list test_dict   # some files
    python benchmarks/cpython_tests.py test_list --only test_append --mode whole --trace

Every file runs in a process of its own; a method that hangs or takes the process down is counted as such and the rest
of its file goes on in a new process.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

FILES = (
    "test_augassign", "test_baseexception", "test_binop", "test_bisect", "test_bool", "test_call", "test_collections", "test_compare",
    "test_complex", "test_contains", "test_contextlib", "test_copy", "test_dataclasses", "test_decorators", "test_defaultdict",
    "test_deque", "test_descr", "test_descrtut", "test_dict", "test_dictcomps", "test_dictviews", "test_dynamic",
    "test_dynamicclassattribute", "test_enum", "test_enumerate", "test_exception_group", "test_exception_hierarchy",
    "test_exception_variations", "test_exceptions", "test_extcall", "test_float", "test_fstring", "test_funcattrs", "test_functools",
    "test_generator_stop", "test_generators", "test_genericalias", "test_genexps", "test_global", "test_grammar", "test_heapq",
    "test_index", "test_int", "test_isinstance", "test_iter", "test_iterlen", "test_itertools", "test_keywordonlyarg", "test_list",
    "test_listcomps", "test_long", "test_math", "test_metaclass", "test_named_expressions", "test_operator", "test_opcodes",
    "test_ordered_dict", "test_patma", "test_pow", "test_positional_only_arg", "test_property", "test_raise", "test_range",
    "test_richcmp", "test_scope", "test_set", "test_setcomps", "test_slice", "test_sort", "test_string", "test_subclassinit",
    "test_super", "test_syntax", "test_tuple", "test_typechecks", "test_unary", "test_unpack", "test_unpack_ex", "test_userdict",
    "test_userlist", "test_userstring", "test_weakset", "test_with", "test_yield_from",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one method did. plain, broken, whole: `pass`, `skip`, or how it failed; whole is `one graph` when it was captured.

    reason: of the break that kept it from being captured whole.
    """

    file: str
    name: str
    plain: str
    broken: str = ""
    whole: str = ""
    reason: str = ""

    @property
    def counts(self) -> bool:
        return self.plain == "pass"


# ---------------------------------------------------------------------- in the worker


def methods(file: str) -> Iterator[tuple[str, Callable[[], unittest.TestCase]]]:
    """Name and maker of each test case of a file, in the loader's order."""
    module = importlib.import_module(f"test.{file}")

    def flat(suite: Any) -> Iterator[unittest.TestCase]:
        for item in suite:
            if isinstance(item, unittest.TestSuite):
                yield from flat(item)
            elif type(item).__module__ == module.__name__ or type(item).__module__.startswith("test."):
                yield item

    loader = unittest.TestLoader()
    loader.suiteClass = unittest.TestSuite
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = unittest.TestSuite(
            loader.loadTestsFromTestCase(item)
            for item in vars(module).values()
            if isinstance(item, type) and issubclass(item, unittest.TestCase) and item.__module__ == module.__name__
        )
    for case in flat(suite):
        name = case._testMethodName
        yield f"{type(case).__qualname__}.{name}", lambda case=case, name=name: type(case)(name)  # type: ignore[misc]


def run_case(make: Callable[[], unittest.TestCase], call: Callable[[Callable[[], Any]], str]) -> str:
    """The outcome of a case whose method is run by `call`."""
    case = make()
    cls = type(case)
    limit = sys.getrecursionlimit()
    method = getattr(case, case._testMethodName)
    if getattr(cls, "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False):
        return "skip"
    try:
        try:
            cls.setUpClass()
            case.setUp()
        except unittest.SkipTest:
            return "skip"
        except Exception as error:
            return f"setUp: {type(error).__name__}"
        try:
            return call(method)
        finally:
            case.tearDown()
            case.doCleanups()
    finally:
        sys.setrecursionlimit(limit)  # a test that failed may leave it low
        try:
            cls.tearDownClass()
            cls.doClassCleanups()
        except Exception:
            traceback.print_exc()


def plainly(method: Callable[[], Any]) -> str:
    try:
        method()
    except unittest.SkipTest:
        return "skip"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:200]
    return "pass"


def captured(method: Callable[[], Any], whole: bool, trace: bool) -> tuple[str, str]:
    """Outcome and, with `whole`, the reason of the break."""
    import torch

    from fxloom_dynamo.code_cache.callables import compile_callable
    from fxloom_dynamo.config import CaptureConfig
    from fxloom_interfaces.errors import FxloomError

    def f(x: Any) -> Any:
        y = x + 1
        method()
        return y * 2

    frames: list[Any] = []
    compiled = compile_callable(f, CaptureConfig(fullgraph=whole, on_capture=frames.append))
    x = torch.arange(3.0)
    try:
        result = compiled(x)
    except FxloomError as error:
        if trace:
            traceback.print_exc()
        text = str(error).split("\n  what happened")[0]
        return type(error).__name__, text
    except unittest.SkipTest:
        return "skip", ""
    except BaseException as error:
        if trace:
            traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:200], ""
    if not torch.equal(result, (x + 1) * 2):
        return "wrong result", ""
    graphs = sum(frame.info.graph is not None for frame in frames)
    if whole:
        if graphs == 1 and len(frames) == 1 and frames[0].info.broke is None:
            return "one graph", ""
        broke = [str(frame.info.broke) for frame in frames if frame.info.broke is not None]
        return f"{graphs} graphs in {len(frames)} frames", (broke or ["not captured: the frame was skipped"])[0]
    return "pass", ""


def work(file: str, skip: int, only: str, modes: tuple[str, ...], trace: bool) -> None:
    """Run a file's methods from number `skip` on; one line of JSON for each, announced before it starts."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    if not trace:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import torch

    import fxloom_dynamo.evaluation.attempts  # noqa: F401  # loaded before the tests change the world

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for number, (name, make) in enumerate(methods(file)):
        if number < skip or only not in name:
            continue
        out.write(json.dumps({"start": number, "name": name}) + "\n")
        plain = run_case(make, plainly)
        result = Outcome(file, name, plain)
        out.write(json.dumps({"plain": plain}) + "\n")
        if plain == "pass":
            if "whole" in modes:
                reason: list[str] = []

                def whole(method: Callable[[], Any], reason: list[str] = reason) -> str:
                    outcome, why = captured(method, True, trace)
                    reason.append(why)
                    return outcome

                result = dataclasses.replace(result, whole=run_case(make, whole))
                result = dataclasses.replace(result, reason=reason[0] if reason else "")
                out.write(json.dumps({"whole": result.whole, "reason": result.reason}) + "\n")
            if "breaks" in modes:
                broken = run_case(make, lambda method: captured(method, False, trace)[0])
                result = dataclasses.replace(result, broken=broken)
        out.write(json.dumps({"done": dataclasses.asdict(result)}) + "\n")


# ---------------------------------------------------------------------- in the parent


def run_file(file: str, only: str, modes: tuple[str, ...], trace: bool, limit: float, log: str = "") -> list[Outcome]:
    """The outcomes of one file's methods. log: file to append them to as they come, one a line."""
    found: list[Outcome] = []
    skip = 0
    while True:
        command = [sys.executable, "-X", "faulthandler", __file__, "--work", file, "--skip", str(skip), "--mode", ",".join(modes)]
        command += ["--only", only] if only else []
        command += ["--trace"] if trace else []
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=None, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()
        current: dict[str, Any] | None = None
        part: dict[str, str] = {}
        hung = False
        while True:
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                hung = True
                process.kill()
                break
            if line is None:
                break
            try:
                message = json.loads(line)
            except ValueError:
                print(line, end="", file=sys.stderr)
                continue
            if "start" in message:
                current, part = message, {}
            elif "done" in message:
                found.append(Outcome(**message["done"]))
                current = None
                if log:
                    with open(f"{log}l", "a") as stream:
                        stream.write(json.dumps(message["done"]) + "\n")
            else:
                part.update(message)
        process.wait()
        if current is None:
            return found
        if process.returncode == 0 and not hung:
            return found
        how = "timeout" if hung else f"process ended with {process.returncode}"
        if "plain" not in part:
            outcome = Outcome(file, current["name"], how)
        elif "whole" in modes and "whole" not in part:
            outcome = Outcome(file, current["name"], part["plain"], how, how, how)
        else:
            outcome = Outcome(file, current["name"], part["plain"], how, part.get("whole", ""), part.get("reason", ""))
        found.append(outcome)
        skip = current["start"] + 1


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def report(outcomes: list[Outcome], modes: tuple[str, ...], top: int) -> None:
    by_file: dict[str, list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        by_file[outcome.file].append(outcome)
    print(f"{'file':28} {'methods':>8} {'run':>5} {'same outcome':>13} {'one graph':>10}")
    for file, items in sorted(by_file.items()):
        _line(file, items)
    _line("all", outcomes)
    if "breaks" in modes:
        for outcome in outcomes:
            if outcome.counts and outcome.broken != "pass":
                print(f"CHANGED {outcome.file} {outcome.name}: {outcome.broken}")
    if "whole" in modes:
        reasons: collections.Counter[str] = collections.Counter()
        keys: collections.Counter[str] = collections.Counter()
        for outcome in outcomes:
            if outcome.counts and outcome.whole != "one graph":
                reason = outcome.reason if outcome.whole == "Unsupported" else f"{outcome.whole} {outcome.reason}"
                reasons[reason.split("\n")[0][:150]] += 1
                keys[reason.partition(":")[0]] += 1
        print("breaks by key: " + ", ".join(f"{key} {count}" for key, count in keys.most_common()))
        for reason, count in reasons.most_common(top):
            print(f"{count:5} {reason}")


def _line(file: str, items: list[Outcome]) -> None:
    run = [item for item in items if item.counts]
    same = sum(item.broken == "pass" for item in run)
    whole = sum(item.whole == "one graph" for item in run)
    share = f"{100 * whole / len(run):.0f} %" if run else ""
    print(f"{file:28} {len(items):8} {len(run):5} {same:13} {whole:10} {share:>6}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[])
    parser.add_argument("--mode", default="whole,breaks", help="whole, breaks, or both")
    parser.add_argument("--only", default="", help="methods whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds without news after which a method counts as hanging")
    parser.add_argument("--top", type=int, default=60, help="number of reasons to print")
    parser.add_argument("--json", default="", help="file for the outcomes")
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    modes = tuple(options.mode.split(","))
    if options.work:
        work(options.work, options.skip, options.only, modes, options.trace)
        return
    files = options.files or [file for file in FILES if _exists(file)]
    with ThreadPoolExecutor(options.jobs) as pool:
        groups = list(pool.map(lambda file: run_file(file, options.only, modes, options.trace, options.limit, options.json), files))
    outcomes = [outcome for group in groups for outcome in group]
    report(outcomes, modes, options.top)
    if options.json:
        with open(options.json, "w") as stream:
            json.dump([dataclasses.asdict(outcome) for outcome in outcomes], stream, indent=1)


def _exists(file: str) -> bool:
    return importlib.util.find_spec(f"test.{file}") is not None


if __name__ == "__main__":
    import importlib.util

    main()
