"""Sets up what is needed and runs nox sessions: `python ci/do.py demo`, `python ci/do.py test`.

Needs Python 3.11 and g++ and nothing else: makes `.venv` from `ci/requirements.txt` (torch first, since our native parts
are built against it) and runs nox there. A stamp of the requirements' text makes the second time fast.
Arguments are names of nox sessions; `test` stands for everything that CI runs. Others are handed to nox after `--`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
REQUIREMENTS = ROOT / "ci" / "requirements.txt"

#: What CI runs, in order: quick verdicts first.
TEST_SESSIONS = ["lint", "imports", "types", "unit", "vendor", "whole"]


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    check_machine()
    python = make_environment()
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, extra = arguments[:split], arguments[split:]
    sessions = [session for name in names for session in (TEST_SESSIONS if name == "test" else [name])]
    command = [str(python), "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", *sessions, *extra]
    return subprocess.run(command, cwd=ROOT).returncode


def check_machine() -> None:
    """Say what is missing before anything slow starts."""
    if sys.version_info[:2] != (3, 11):
        raise SystemExit(
            f"ci/do.py: the pinned environment is for CPython 3.11, this is {sys.version.split()[0]} ({sys.executable}). "
            "Run it with a python3.11; for other versions see `nox -l`."
        )
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise SystemExit(f"ci/do.py: no C++ compiler: {compiler!r} is not on PATH. Install g++ or set CXX.")


def make_environment() -> Path:
    """The interpreter of `.venv`, made anew when the requirements changed."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    print("ci/do.py: making .venv (torch and the tools; some minutes the first time)", flush=True)
    venv.EnvBuilder(clear=True, with_pip=True).create(ENVIRONMENT)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = next(line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("torch=="))
    subprocess.run([*pip, torch], check=True)
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
