"""The artifact store: content-addressed files that outlive a process, safe for many processes at once.

In: a key, which is the hash of *declared* inputs and can be explained (`ArtifactKey.difference`), and a function that writes the
file. Out: the file's path.
Invariant: a reader sees a whole entry or none. Writers hold a lock per key and publish by renaming. An entry is checked when
read: a damaged one counts as missing, and is made again.

Whom the store trusts: entries are shared objects and Python files that plugins load, so whoever can write to the store can run
code as its user; the check finds damage, not malice. The root is made for its owner alone (mode 0700), and one that belongs to
somebody else, or that everybody may write to, is not used.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from fxloom_interfaces.errors import UserError
from fxloom_interfaces.versions import ARTIFACT_STORE

log = logging.getLogger("fxloom.artifacts")

#: Errors that say that a folder can't be written, not that a writer is wrong.
_UNUSABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT, errno.EEXIST})

#: roots that are not used, of which a warning was given
_refused: set[Path] = set()

_PAYLOAD = "payload"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class ArtifactKey:
    """Identity of an artifact. declared: the named inputs that it depends on, as text, sorted by name."""

    kind: str
    declared: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Hex SHA-256 of kind and declared inputs."""
        text = json.dumps([self.kind, self.declared], separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def difference(self, other: ArtifactKey) -> tuple[str, ...]:
        """Names of the inputs that tell the two keys apart; empty when they are the same."""
        mine, theirs = dict(self.declared), dict(other.declared)
        names = sorted(mine.keys() | theirs.keys())
        return tuple(name for name in names if mine.get(name) != theirs.get(name))


def artifact_key(kind: str, **declared: str) -> ArtifactKey:
    """The key of an artifact of `kind` that depends on the declared texts."""
    return ArtifactKey(kind, tuple(sorted(declared.items())))


@runtime_checkable
class ArtifactStore(Protocol):
    """Where artifacts are kept."""

    def get(self, key: ArtifactKey) -> Path | None:
        """The artifact's file, whole and checked, or None. The file must not be changed."""
        ...

    def put(self, key: ArtifactKey, write: Callable[[Path], None], suffix: str = "") -> Path:
        """Make the artifact: `write(path)` fills a new file; returns where it lies then.

        suffix: of the file's name (`.so`). When the disk is full or can't be written the file is made in a folder of this
        process instead, with a warning in the log; UserError when that fails too.
        """
        ...

    @contextmanager
    def lock(self, key: ArtifactKey) -> Iterator[None]:
        """Held by one process at a time; look with `get` again once you have it."""
        ...


class FileStore:
    """The store on a local disk. root: made when first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root / f"v{ARTIFACT_STORE.major}"
        self._private: Path | None = None  # stands in for root when that can't be written; gone with the process

    def get(self, key: ArtifactKey) -> Path | None:
        for root in self._roots() if self._is_trusted() else self._roots()[1:]:
            folder = self._folder(root, key)
            path = _checked_payload(folder)
            if path is not None:
                return path
        return None

    def put(self, key: ArtifactKey, write: Callable[[Path], None], suffix: str = "") -> Path:
        try:
            if self._is_trusted():
                return self._put(self.root, key, write, suffix)
        except OSError as error:
            if error.errno not in _UNUSABLE:
                raise
            log.warning("fxloom cache %s can't be written (%s); this process keeps its artifacts to itself", self.root, error)
        try:
            return self._put(self._private_root(), key, write, suffix)
        except OSError as error:
            raise UserError(
                f"no room for compiled artifacts: neither {self.root} nor {tempfile.gettempdir()} can be written ({error}). "
                "Free space, set FXLOOM_CACHE_DIR or TMPDIR to another disk, or run eager with FXLOOM_DISABLE=1."
            ) from error

    @contextmanager
    def lock(self, key: ArtifactKey) -> Iterator[None]:
        # Imported here: only those who build anything need it.
        from filelock import FileLock

        if not self._is_trusted():
            yield  # what this process keeps to itself nobody else makes
            return
        folder = self.root / "locks"
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{key.digest[:32]}.lock")
            lock.acquire()
        except OSError as error:
            # A store that can't be written can't be shared either, so there is nobody to keep out.
            log.warning("fxloom cache %s can't be locked (%s)", self.root, error)
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _put(self, root: Path, key: ArtifactKey, write: Callable[[Path], None], suffix: str) -> Path:
        folder = self._folder(root, key)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            payload = staging / f"{_PAYLOAD}{suffix}"
            write(payload)
            manifest = {"kind": key.kind, "declared": dict(key.declared), "file": payload.name, **_fingerprint(payload)}
            (staging / _MANIFEST).write_text(json.dumps(manifest, indent=1))
            try:
                staging.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # Another process was first. A whole entry is as good as ours, a damaged one gives way.
                if _checked_payload(folder) is None:
                    shutil.rmtree(folder, ignore_errors=True)
                    staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return folder / f"{_PAYLOAD}{suffix}"

    def _folder(self, root: Path, key: ArtifactKey) -> Path:
        digest = key.digest
        return root / key.kind / digest[:2] / digest

    def _is_trusted(self) -> bool:
        """Whether nobody but this user, or the administrator, can have put entries here."""
        if not hasattr(os, "geteuid"):
            return True
        try:
            found = os.stat(self.root)
        except OSError:
            return True  # there is none yet; or it can't be read, which says itself
        if found.st_uid not in (os.geteuid(), 0):
            reason = f"it belongs to user {found.st_uid}"
        elif found.st_mode & stat.S_IWOTH:
            reason = "everybody may write to it"
        else:
            return True
        if self.root not in _refused:
            _refused.add(self.root)
            log.warning(
                "fxloom cache %s is not used, since its files are run as code and %s; this process keeps its artifacts to itself. "
                "Set FXLOOM_CACHE_DIR to a folder of your own.", self.root, reason,
            )  # fmt: skip
        return False

    def _private_root(self) -> Path:
        if self._private is None:
            self._private = Path(tempfile.mkdtemp(prefix="fxloom-"))
            atexit.register(shutil.rmtree, self._private, ignore_errors=True)
        return self._private

    def _roots(self) -> tuple[Path, ...]:
        return (self.root,) if self._private is None else (self.root, self._private)


def _fingerprint(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _checked_payload(folder: Path, again: bool = True) -> Path | None:
    """The payload of an entry when it is as it was written. A damaged one stays until `put` replaces it.

    again: look once more where the folder is there and its manifest is not: another process may have put it there just now.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        path = folder / manifest["file"]
        if _fingerprint(path) == {"size": manifest["size"], "sha256": manifest["sha256"]}:
            return path
        reason = "contents differ from what was written"
    except FileNotFoundError:
        if not folder.exists():
            return None
        if again:
            return _checked_payload(folder, again=False)
        reason = "a file is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    log.warning("fxloom cache entry %s is damaged (%s); making it again", folder, reason)
    return None
