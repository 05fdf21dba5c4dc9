"""All development sessions. `nox -l` lists them; each docstring is its help.

Environments: `.venv` (made by ci/do.py) holds torch and the tools. Sessions run in it, or, where isolation is the point
(`unit`, `install`), in an environment of their own that sees nothing of `.venv` but torch and what torch itself requires.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
#: Dependencies before dependents.
ORDER = [
    "interfaces", "ops", "shapes", "codegen-common", "dynamo", "decomp", "aot", "inductor-core",
    "codegen-cpp", "codegen-triton", "cudagraphs", "testing", "fxloom",
]  # fmt: skip
if sorted(ORDER) != PACKAGES:
    raise SystemExit(f"noxfile.py: ORDER does not list the packages: {sorted(set(ORDER) ^ set(PACKAGES))}")
VERSION = "0.1.0"
DIST = ROOT / "dist"
STATE = ROOT / ".nox"

nox.needs_version = ">=2024.4"
nox.options.sessions = ["lint", "imports", "types", "unit", "whole"]
nox.options.reuse_existing_virtualenvs = True


def distribution(package: str) -> str:
    return "fxloom" if package == "fxloom" else f"fxloom-{package}"


def import_name(package: str) -> str:
    return distribution(package).replace("-", "_")


def digest(package: str) -> str:
    """Of everything that goes into the package's wheel."""
    folder = ROOT / "packages" / package
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and relative.parts[0] not in ("tests", "build", "changes") and path.suffix not in (".so", ".pyc"):
            state.update(f"{relative}\0".encode() + path.read_bytes())
    return state.hexdigest()


def build_wheels(session: nox.Session, python: str = sys.executable, into: Path = DIST) -> None:
    """Wheels of all packages in `into`; a package whose sources did not change is not built again."""
    into.mkdir(exist_ok=True)
    for package in ORDER:
        stamp = into / f"{package}.sha256"
        wanted = digest(package)
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        for old in into.glob(f"{import_name(package)}-{VERSION}-*.whl"):
            old.unlink()
        session.run(
            python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check",
            "--wheel-dir", str(into), str(ROOT / "packages" / package), external=True,
        )  # fmt: skip
        stamp.write_text(wanted)


def install_wheels(session: nox.Session, python: str, *packages: str, into: Path = DIST) -> None:
    """Install our wheels, and only ours, into the environment of `python`; what is there already and unchanged stays."""
    stamp = Path(python).parent.parent / "fxloom-wheels.sha256"
    wanted = "".join((into / f"{package}.sha256").read_text() for package in packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    session.run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall",
        "--disable-pip-version-check", "--find-links", str(into), *(f"{distribution(p)}=={VERSION}" for p in packages), external=True,
    )  # fmt: skip
    stamp.write_text(wanted)


@nox.session(venv_backend="none")
def build(session: nox.Session) -> None:
    """Build a wheel of each package into dist/."""
    build_wheels(session)
    session.log(f"{len(list(DIST.glob('*.whl')))} wheels in {DIST}")


@nox.session(venv_backend="none")
def dev(session: nox.Session) -> None:
    """Editable installs of all packages in the running environment."""
    for package in ORDER:
        session.run(
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check",
            "--editable", str(ROOT / "packages" / package), external=True,
        )  # fmt: skip


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff, forbidden imports, the packages' table, dumps and links in the documentation, subjects of commits."""
    session.run(sys.executable, "-m", "ruff", "check", ".", external=True)
    for check in ("check_forbidden", "check_packages", "refresh_docs", "check_subjects"):
        session.run(sys.executable, f"tools/{check}.py", external=True)


@nox.session(venv_backend="none")
def imports(session: nox.Session) -> None:
    """Direction of imports between the packages (import-linter), cycles between a package's modules."""
    paths = os.pathsep.join(str(ROOT / "packages" / package / "src") for package in ORDER)
    session.run(str(Path(sys.executable).parent / "lint-imports"), env={"PYTHONPATH": paths}, external=True)
    session.run(sys.executable, "tools/check_cycles.py", external=True)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Mypy over all packages' src."""
    sources = [str(ROOT / "packages" / package / "src") for package in ORDER]
    session.run(sys.executable, "-m", "mypy", *sources, env={"MYPYPATH": os.pathsep.join(sources)}, external=True)


def share_torch(python: str) -> None:
    """Let the environment of `python` see this environment's torch and what torch requires, and nothing else of it."""
    import importlib.metadata
    import re

    shared = STATE / "shared-torch"
    site = Path(importlib.metadata.distribution("torch").locate_file(""))  # type: ignore[arg-type]
    if not (shared / "torch").exists():
        shared.mkdir(parents=True, exist_ok=True)
        todo, seen = ["torch", "numpy"], set()
        while todo:
            name = todo.pop()
            try:
                dist = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # a requirement for another platform
            if dist.metadata["Name"] in seen:
                continue
            seen.add(dist.metadata["Name"])
            for top in {file.parts[0] for file in dist.files or [] if file.parts[0] not in ("..", "__pycache__")}:
                link = shared / top
                if not link.exists():
                    link.symlink_to(site / top)
            for requirement in dist.requires or []:
                if "extra ==" not in requirement:
                    todo.append(re.split(r"[ ;<>=!~\[(]", requirement, maxsplit=1)[0])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = Path(python).parent.parent / "lib" / version / "site-packages" / "shared_torch.pth"
    target.write_text(f"{shared}\n")


def declared(package: str, *, extra: str | None = "test") -> tuple[list[str], list[str]]:
    """What a package declares, all its siblings' declarations included: (sibling packages, third-party requirements)."""
    siblings: list[str] = []
    third: list[str] = []
    todo = [(package, extra)]
    while todo:
        name, with_extra = todo.pop()
        project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
        requirements = list(project["dependencies"])
        if with_extra is not None:
            requirements += project.get("optional-dependencies", {}).get(with_extra, [])
        for requirement in requirements:
            if requirement.startswith("fxloom"):
                sibling = requirement.split("==")[0].removeprefix("fxloom-")
                if sibling not in siblings:
                    siblings.append(sibling)
                    todo.append((sibling, None))
            elif requirement not in third and not requirement.startswith("torch"):
                third.append(requirement)
    return siblings, sorted(third)


def isolated(session: nox.Session, package: str) -> str:
    """An environment with the package's wheel and what it declares; returns its interpreter."""
    environment = STATE / "isolated" / package
    python = str(environment / "bin" / "python")
    siblings, third = declared(package)
    wanted = hashlib.sha256("\n".join([*third, (ROOT / "ci/requirements.txt").read_text()]).encode()).hexdigest()
    stamp = environment / "third-party.sha256"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        session.run(sys.executable, "-m", "venv", "--without-pip", str(environment), external=True, silent=True)
        share_torch(python)
        session.run(
            sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check",
            "--constraint", str(ROOT / "ci" / "requirements.txt"), *third, external=True,
        )  # fmt: skip
        stamp.write_text(wanted)
    install_wheels(session, python, package, *siblings)
    return python


@nox.session(venv_backend="none")
@nox.parametrize("package", ORDER, ids=ORDER)
def unit(session: nox.Session, package: str) -> None:
    """A package's own tests, in an environment that holds only what the package declares."""
    build_wheels(session)
    python = isolated(session, package)
    run_pytest(session, python, f"packages/{package}/tests")


def run_pytest(session: nox.Session, python: str, *where: str, marks: str = "not slow and not gpu") -> None:
    """Pytest on the tests with these marks unless arguments ask otherwise; compiled artifacts go to a cache of their own."""
    arguments = session.posargs or ["-m", marks]
    environment = {"FXLOOM_CACHE_DIR": str(STATE / "test-cache"), "PYTHONPATH": ""}
    passes = [0] if marks.startswith("not") else [0, 5]  # 5: nothing has these marks
    session.run(python, "-m", "pytest", "-q", *arguments, *where, env=environment, external=True, success_codes=passes)


def whole_environment(session: nox.Session, version: str) -> str:
    """An environment with all packages for a CPython version; torch comes from the index where it isn't this one's."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        build_wheels(session)
        install_wheels(session, sys.executable, *ORDER)
        return sys.executable
    environment = STATE / f"whole-{version}"
    python = str(environment / "bin" / "python")
    if not Path(python).exists():
        session.run(f"python{version}", "-m", "venv", str(environment), external=True)
    pinned = (ROOT / "ci" / "requirements.txt").read_text().splitlines()
    wanted = hashlib.sha256("\n".join(pinned).encode()).hexdigest()
    stamp = environment / "requirements.sha256"
    if not stamp.exists() or stamp.read_text() != wanted:
        session.run(
            python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(ROOT / "ci/requirements.txt"),
            "torch", "numpy", "transformers", "pytest", "pytest-xdist", "hypothesis", "expecttest", "networkx", "sympy", "jinja2",
            "filelock", "platformdirs", "rich", "pybind11", "scikit-build-core", "cmake", "ninja", "hatchling", external=True,
        )  # fmt: skip
        stamp.write_text(wanted)
    into = ROOT / f"dist-{version}"
    build_wheels(session, python, into)
    install_wheels(session, python, *ORDER, into=into)
    return python


@nox.session(venv_backend="none")
def whole(session: nox.Session) -> None:
    """The tests that need all packages: the demo's programs, plugins, docs' examples."""
    python = whole_environment(session, f"{sys.version_info.major}.{sys.version_info.minor}")
    run_pytest(session, python, "tests", "docs/test_examples.py", "docs/test_recipes.py")


@nox.session(venv_backend="none")
def vendor(session: nox.Session) -> None:
    """The toy code generator of docs/examples, installed like a stranger's package, in an environment of its own."""
    build_wheels(session)
    python = isolated(session, "fxloom")
    install_wheels(session, python, "testing", *declared("fxloom")[0], "fxloom")
    toy = ROOT / "docs" / "examples" / "toy_codegen"
    session.run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check",
        "--wheel-dir", str(STATE / "toy"), str(toy), external=True,
    )  # fmt: skip
    session.run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall",
        "--disable-pip-version-check", "--find-links", str(STATE / "toy"), "toy-codegen", external=True,
    )  # fmt: skip
    run_pytest(session, python, str(toy / "tests"))
    session.run(sys.executable, "-m", "pip", "--python", python, "uninstall", "--quiet", "--yes", "toy-codegen", external=True)


@nox.session(venv_backend="none")
@nox.parametrize("version", ["3.11", "3.12", "3.13"], ids=["3.11", "3.12", "3.13"])
def versions(session: nox.Session, version: str) -> None:
    """Every package's tests and the whole ones on one CPython version, all in one environment."""
    python = whole_environment(session, version)
    for package in ORDER:
        run_pytest(session, python, f"packages/{package}/tests")
    run_pytest(session, python, "tests", "docs/test_examples.py", "docs/test_recipes.py")


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """The long tail: every slow test, and 100,000 drawn programs (hours)."""
    session.env.setdefault("FXLOOM_DRAWN_PROGRAMS", "100000")
    python = whole_environment(session, f"{sys.version_info.major}.{sys.version_info.minor}")
    for package in ORDER:
        run_pytest(session, python, f"packages/{package}/tests", marks="slow and not gpu")
    run_pytest(session, python, "tests", marks="slow and not gpu")


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """The demo: compiles and runs four programs and prints the table. Arguments after -- go to `python -m fxloom demo`."""
    python = whole_environment(session, f"{sys.version_info.major}.{sys.version_info.minor}")
    session.run(python, "-m", "fxloom", "demo", *session.posargs, external=True)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """The benchmark against eager and torch.compile, interleaved in one run."""
    python = whole_environment(session, f"{sys.version_info.major}.{sys.version_info.minor}")
    session.run(python, "benchmarks/whole_way.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def install(session: nox.Session) -> None:
    """`pip install` of the wheels in a clean environment, then one compiled call."""
    build_wheels(session)
    python = isolated(session, "fxloom")
    check = "import torch, fxloom; f = fxloom.compile(lambda x: x.sin() + 1); print(f(torch.ones(3)))"
    session.run(python, "-I", "-c", check, external=True)
