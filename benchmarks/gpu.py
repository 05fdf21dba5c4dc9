"""Everything that is measured on one GPU, in one command: single kernels (bandwidth.py), then whole models (models.py).

    python benchmarks/gpu.py                                                 # all, bfloat16, full size
    python benchmarks/gpu.py --only resnet,timm:resnet50 --modes train       # models alone, with the options of models.py
    python benchmarks/gpu.py --kernels softmax,adam                          # kernels alone; `--kernels all`
    python benchmarks/gpu.py --json out.json --csv out.csv --plots plots     # kernels go to out.json.kernels.DTYPE

Options that aren't named here are those of models.py, with other defaults: device cuda, bfloat16, full size.
"""

from __future__ import annotations

import argparse
import sys

import bandwidth
import models


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False)
    parser.add_argument("--kernels", default="", help="which kernels, by parts of their names, or all; then no models")
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--size", default="full")
    parser.add_argument("--json", default="")
    parser.add_argument("--help", "-h", action="store_true")
    given = sys.argv[1:] if arguments is None else arguments
    known, rest = parser.parse_known_args(given)
    if known.help:
        parser.print_help()
        return models.main(["--help"])
    wrong = 0
    if not known.only and "--worker" not in rest and "--from" not in rest:
        wanted = "" if known.kernels == "all" else known.kernels
        for dtype in known.dtypes.split(","):
            if not dtype.startswith("amp-"):
                kept = ["--json", f"{known.json}.kernels.{dtype}"] if known.json else []
                shared = [word for name in ("contenders", "rounds", "by", "budget") for word in passed_on(name, rest)]
                wrong |= bandwidth.main(
                    ["--device", known.device, "--dtype", dtype, "--size", known.size, "--only", wanted, *kept, *shared]
                )
    if not known.kernels:
        mine = ["--device", known.device, "--dtypes", known.dtypes, "--size", known.size, "--only", known.only, "--json", known.json]
        wrong |= models.main([*mine, *rest])
    return wrong


def passed_on(name: str, words: list[str]) -> list[str]:
    """An option of models.py that bandwidth.py has too."""
    for at, word in enumerate(words):
        if word == f"--{name}":
            return words[at : at + 2]
        if word.startswith(f"--{name}="):
            return [word]
    return []


if __name__ == "__main__":
    sys.exit(main())
