"""Refuses commit subjects that are longer than 72 characters or end in a full stop (CONTRIBUTING.md, Commits); of the last commits,
where there is a history."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Commits that are looked at: those that are still to be mended.
RECENT = 10
LONGEST = 72


def main() -> int:
    command = ["git", "log", f"-{RECENT}", "--no-merges", "--format=%h %s"]
    try:
        history = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:  # no git, so no history
        return 0
    bad = [line for line in history if len(line.partition(" ")[2]) > LONGEST or line.endswith(".")]
    print("\n".join(f"{line}: a subject has at most {LONGEST} characters and no full stop" for line in bad) or "subjects are short")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
