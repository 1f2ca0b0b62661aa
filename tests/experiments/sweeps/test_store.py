"""The content-addressed store: what goes in comes out, damage is noticed, a full disk is said."""

from __future__ import annotations

import errno
import os
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpsim.experiments.sweeps.store import ResultStore, StoreError

KEY, OTHER = "ab" + 62 * "0", "cd" + 62 * "1"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: value is not None)

many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(value=values)
def test_what_goes_in_comes_out(tmp_path: Path, value: object) -> None:
    store = ResultStore(tmp_path)
    store.put(KEY, value)
    found = ResultStore(tmp_path).get(KEY)
    assert found == value
    assert type(found) is type(value)
    assert store.get(OTHER) is None
    assert store.damaged == 0


@many
@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_changed_byte_never_gives_another_value(tmp_path: Path, place: int, change: int) -> None:
    value = {"step_s": 1.25, "reason": "", "batches": [1, 2, 3]}
    store = ResultStore(tmp_path)
    store.put(KEY, value)
    (path,) = tmp_path.glob("??/*.json")
    text = bytearray(path.read_bytes())
    text[place % len(text)] ^= change
    path.write_bytes(text)
    assert store.get(KEY) in (None, value)  # value: the byte was white space, say


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"schema_version": 1}'])
def test_damaged_entries_count_as_absent_and_are_written_again(tmp_path: Path, damage: bytes) -> None:
    store = ResultStore(tmp_path)
    store.put(KEY, 1)
    (path,) = tmp_path.glob("??/*.json")
    path.write_bytes(damage)
    assert store.get(KEY) is None
    assert store.damaged == 1
    store.put(KEY, 2)
    assert store.get(KEY) == 2


def test_an_entry_under_another_name_is_not_believed(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.put(KEY, 1)
    (tmp_path / "cd").mkdir()
    (tmp_path / "ab" / f"{KEY}.json").rename(tmp_path / "cd" / f"{OTHER}.json")
    assert store.get(OTHER) is None


def directory(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "mine").write_text("somebody's work")


def fifo(path: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(path)


def link_to_a_device(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/zero")


def link_to_a_directory(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(path.parent.parent)


def file_for_a_folder(path: Path) -> None:
    path.parent.write_text("somebody's work")


@pytest.mark.parametrize(
    "wrong", [directory, fifo, link_to_itself, link_to_a_device, link_to_a_directory, file_for_a_folder]
)
def test_what_is_no_entry_counts_as_absent_is_replaced_and_nothing_is_deleted(
    tmp_path: Path, wrong: Callable[[Path], None]
) -> None:
    wrong(tmp_path / "ab" / f"{KEY}.json")
    work = sum(path.is_file() and "work" in path.read_text() for path in tmp_path.rglob("*"))
    store = ResultStore(tmp_path)
    assert store.get(KEY) is None
    store.put(KEY, 1)
    assert store.get(KEY) == 1
    assert list(store.keys()) == [KEY]
    assert work == sum(path.is_file() and "work" in path.read_text() for path in tmp_path.rglob("*"))


def test_a_full_disk_is_said_and_what_was_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore(tmp_path)
    store.put(KEY, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("hdpsim.files.os.replace", full)
        with pytest.raises(StoreError, match=r"No space left on device.*stay.*--store"):
            store.put(OTHER, 2)
    assert store.get(KEY) == 1
    assert list(store.keys()) == [KEY]
    assert not list(tmp_path.rglob("*.part"))


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        ResultStore(tmp_path / "file" / "store").prepare()


def test_old_temporary_files_are_swept_away_and_young_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    old, young = tmp_path / "ab" / "x.part", tmp_path / "ab" / "y.part"
    old.touch()
    young.touch()
    os.utime(old, (1.0, 1.0))
    ResultStore(tmp_path).prepare()
    assert not old.exists()
    assert young.exists()
