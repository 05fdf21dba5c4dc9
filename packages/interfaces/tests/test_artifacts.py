"""The artifact store: content-addressed, checked, safe for many processes, calm about disks."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from fxloom_interfaces.artifacts import ArtifactStore, FileStore, artifact_key
from fxloom_interfaces.errors import UserError


def test_round_trip(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    key = artifact_key("text", source="abc", flags="-O2")
    assert isinstance(store, ArtifactStore)
    assert store.get(key) is None
    path = store.put(key, lambda target: target.write_text("built") and None, ".so")
    assert path.suffix == ".so"
    assert path.read_text() == "built"
    assert FileStore(tmp_path).get(key) == path


def test_key_depends_on_every_declared_input_and_explains() -> None:
    key = artifact_key("text", source="abc", flags="-O2")
    assert key == artifact_key("text", flags="-O2", source="abc")
    other = artifact_key("text", source="abc", flags="-O3")
    assert key.digest != other.digest
    assert key.difference(other) == ("flags",)
    assert artifact_key("other", source="abc", flags="-O2").digest != key.digest


@pytest.mark.parametrize("damage", ["truncate", "manifest", "remove"])
def test_damaged_entry_counts_as_missing_and_is_made_again(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(tmp_path)
    key = artifact_key("text", source="abc")
    path = store.put(key, lambda target: target.write_text("built") and None)
    if damage == "truncate":
        path.write_text("bui")
    elif damage == "manifest":
        (path.parent / "manifest.json").write_text("{")
    else:
        path.unlink()
    assert store.get(key) is None
    assert "damaged" in caplog.text
    assert store.put(key, lambda target: target.write_text("again") and None).read_text() == "again"
    assert store.get(key) is not None


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    key = artifact_key("text", source="abc")

    def fail(target: Path) -> None:
        target.write_text("half")
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        store.put(key, fail)
    assert store.get(key) is None
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_full_disk_falls_back_to_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(tmp_path)
    key = artifact_key("text", source="abc")

    def write(target: Path) -> None:
        if tmp_path in target.parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        target.write_text("built")

    path = store.put(key, write)
    assert path.read_text() == "built"
    assert store.get(key) == path
    assert "can't be written" in caplog.text


def test_root_that_is_a_file_falls_back_to_a_private_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    store = FileStore(tmp_path / "taken")
    key = artifact_key("text", source="abc")
    with store.lock(key):
        path = store.put(key, lambda target: target.write_text("built") and None)
    assert path.read_text() == "built"
    assert store.get(key) == path


def test_no_room_anywhere_is_a_clear_error(tmp_path: Path) -> None:
    def write(target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="FXLOOM_CACHE_DIR"):
        FileStore(tmp_path).put(artifact_key("text", source="abc"), write)


def build_once(root: str, log: str) -> None:
    store = FileStore(Path(root))
    key = artifact_key("text", source="shared")
    with store.lock(key):
        if store.get(key) is None:
            with open(log, "a") as file:
                file.write("built\n")
            store.put(key, lambda target: target.write_text("x" * 1000) and None)
    path = store.get(key)
    assert path is not None
    assert len(path.read_text()) == 1000


def test_many_processes_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=build_once, args=(str(tmp_path / "store"), str(log))) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 6
    assert log.read_text() == "built\n"


def put(store: FileStore, text: str = "built") -> Path:
    return store.put(artifact_key("text", source="abc"), lambda target: target.write_text(text) and None)


def test_the_root_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    put(store)
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700


@pytest.mark.parametrize("change", ["everybody may write", "belongs to another"])
def test_a_root_that_others_may_fill_is_not_used(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(FileStore(tmp_path), "theirs")
    store = FileStore(tmp_path)
    if change == "everybody may write":
        store.root.chmod(0o777)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: store.root.stat().st_uid + 1)
        if store.root.stat().st_uid == 0:
            os.chown(store.root, 12345, -1)
    assert store.get(artifact_key("text", source="abc")) is None
    with store.lock(artifact_key("text", source="abc")):
        path = put(store, "mine")
    assert not path.is_relative_to(tmp_path)
    assert store.get(artifact_key("text", source="abc")) == path
    assert path.read_text() == "mine"
    assert [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]


def test_an_entry_that_appears_meanwhile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process puts it there between the look for its manifest and the look for its folder."""
    store, key = FileStore(tmp_path), artifact_key("kind", source="text")
    exists = Path.exists

    def after_the_other(path: Path) -> bool:
        monkeypatch.setattr(Path, "exists", exists)
        FileStore(tmp_path).put(key, lambda target: target.write_text("made") and None)
        return exists(path)

    monkeypatch.setattr(Path, "exists", after_the_other)
    found = store.get(key)
    assert found is not None and found.read_text() == "made"
