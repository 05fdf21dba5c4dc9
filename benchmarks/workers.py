"""Cases handed out to worker processes, which are started again when they die.

A case is a tuple of words. The script that uses this is its own worker: called with `--worker` it runs `serve`, which reads a
case a line and writes one line of JSON for each, the `Outcome` of that script. A worker that is lost, or takes too long, is an
outcome too, charged to the case that it worked on.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any


def caught(run: Callable[..., Any], outcome: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, for which an error is an outcome too: `outcome(*case, kind, text)`, of kind "died" where the device is lost."""

    def safely(*case: str) -> Any:
        try:
            return run(*case)
        except Exception as error:
            traceback.print_exc()
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            return outcome(*case, "died" if "CUDA error" in text else "raised", text)

    return safely


def serve(run: Callable[..., Any]) -> None:
    """A worker. run: from the words of a case to its outcome; one of kind "died" ends the process, whose device is lost."""
    warnings.simplefilter("ignore")
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints
    for line in sys.stdin:
        outcome = run(*line.split())
        answer.write(json.dumps(asdict(outcome)) + "\n")
        answer.flush()
        if outcome.kind == "died":
            os._exit(1)


def run_all(
    cases: Sequence[tuple[str, ...]], make: Callable[..., Any], arguments: Sequence[str], options: argparse.Namespace,
    tell: Callable[[Any], None] = lambda outcome: None,
) -> tuple[list[Any], int]:  # fmt: skip
    """The outcomes, as they came, and how many cases were not begun.

    make: the class of the outcomes, called with a case and the keywords kind and text as well. arguments: of this script, for its
    workers. options: workers, timeout (seconds for one case), budget (seconds after which none is begun). tell: is called with
    each outcome.
    """
    todo: queue.Queue[tuple[str, ...]] = queue.Queue()
    for case in cases:
        todo.put(case)
    found: list[Any] = []
    deadline = time.time() + options.budget

    def feed(number: int) -> None:
        """Keep one worker after the other busy until nothing is left."""
        process: subprocess.Popen[str] | None = None
        log = Path(tempfile.gettempdir()) / f"{Path(sys.argv[0]).stem}-{os.getpid()}-{number}.log"
        while time.time() < deadline:
            try:
                case = todo.get_nowait()
            except queue.Empty:
                break
            if process is None or process.poll() is not None:
                command = [sys.executable, sys.argv[0], *arguments, "--worker"]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True)
            assert process.stdin is not None and process.stdout is not None
            timer = threading.Timer(options.timeout, process.kill)
            timer.start()
            start = time.time()
            try:
                process.stdin.write(" ".join(case) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            timer.cancel()
            if line:
                outcome = make(**json.loads(line))
                if outcome.kind == "died":
                    process.wait()
            else:
                process.wait()
                kind = "timeout" if time.time() - start >= options.timeout else "died"
                tail = " ".join(log.read_text(errors="replace").split())[-300:]
                outcome = make(*case, kind=kind, text=f"exit code {process.returncode}: {tail}")
            found.append(outcome)
            tell(outcome)
        if process is not None and process.poll() is None:
            process.kill()

    threads = [threading.Thread(target=feed, args=(number,)) for number in range(options.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, todo.qsize()
