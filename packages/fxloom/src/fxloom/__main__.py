"""`python -m fxloom`: the demo and information about the installation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="fxloom", description="The fxloom compile stack.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="compile and run BERT, GPT-2, ResNet-50 and a plain-Python program")
    demo.add_argument("names", nargs="*", help="programs to run, by part of their name; all when left out")
    demo.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    demo.add_argument("--dtype", default="float32", help="of weights and activations (default: float32)")
    demo.add_argument("--mode", default=None, help="as fxloom.compile takes it, for example reduce-overhead")
    demo.add_argument("--small", action="store_true", help="few layers and small inputs")
    demo.add_argument("--repeats", type=int, default=20, help="timed runs of each contender (default: 20)")
    demo.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    info = commands.add_parser("info", help="versions, plugins, compiler, cache")
    info.add_argument("--json", action="store_true")
    parsed = parser.parse_args(arguments)
    if parsed.command == "info":
        from fxloom.info import print_info

        return print_info(as_json=parsed.json)
    try:
        import transformers  # noqa: F401  # asked for by name below
    except ImportError:
        print("The demo's models come from transformers: pip install 'fxloom[demo]'", file=sys.stderr)  # noqa: T201
        return 2
    from fxloom.demo.run import run_demo

    return run_demo(
        parsed.names, device=parsed.device, dtype=parsed.dtype, mode=parsed.mode, small=parsed.small,
        repeats=parsed.repeats, as_json=parsed.json,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
