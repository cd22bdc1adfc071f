import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import UserError
from pipeline.core.store import MANIFEST, ShardBusyError, Store, file_digest, parquet_bytes, write_atomically
from schemas.records import Rejection
from tests.core.toy_stages import SHARD, Word, build, digests, run_and_die, run_until_told, words_stage

OLD = "similarity.max_cosine=0.5"


@pytest.fixture(scope="module")
def processes():
    """Processes forked from one that has loaded everything: as separate as any, and started in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        context.set_forkserver_preload(["tests.core.toy_stages", "pyarrow.parquet", "pyarrow.dataset", "filelock"])
        context.Process(target=print).start()
    return context


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def put(store: Store, numbers: list[list[int]], key: str = "k1", dropped: tuple[Rejection, ...] = ()) -> None:
    with store.writing("words", SHARD, key, Word) as writer:
        writer.begin(len(numbers))
        for part, members in enumerate(numbers):
            words = [Word(id=f"w{n:03d}", text=f"{key} {n}", blob=b"x" * n) for n in members]
            writer.write_part(part, words, dropped[part :: len(numbers)])
        writer.finish({"counts": {}})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_shard_is_read_back_in_id_order_with_the_columns_asked_for(store):
    put(store, [[5, 1], [9, 0]])
    table = store.table("words", SHARD, ["id", "text"])
    assert table.column_names == ["id", "text"]
    assert table["id"].to_pylist() == ["w000", "w001", "w005", "w009"] == store.kept_ids("words", SHARD)
    assert store.rows("words", SHARD, ["blob"], ["w005"]) == {"w005": {"id": "w005", "blob": b"xxxxx"}}


def test_ids_that_are_not_there_and_no_ids_at_all_give_no_rows(store):
    put(store, [[1, 2], [3]])
    assert store.rows("words", SHARD, ["text"], ["w007", "w002"]).keys() == {"w002"}
    assert store.rows("words", SHARD, ["text"], []) == {}
    assert store.table("words", SHARD, ["id"], []).num_rows == 0


def test_reading_some_ids_leaves_the_other_parts_on_the_disk(store, monkeypatch):
    put(store, [[1, 2], [3, 4], [5, 6]])
    data = store.shard_dir("words", SHARD) / "part-00002.parquet"
    start = pq.read_metadata(data).row_group(0).column(2).data_page_offset
    with data.open("r+b") as file:  # the page of blobs is destroyed: whoever reads it fails
        file.seek(start)
        file.write(b"\xff" * 30)
    assert len(store.rows("words", SHARD, ["blob"], ["w001", "w004"])) == 2
    with pytest.raises((OSError, pa.ArrowException)):
        store.rows("words", SHARD, ["blob"], ["w005"])


def test_a_shard_that_is_not_there_is_a_clear_error(store):
    with pytest.raises(UserError, match=r"python -m pipeline\.words"):
        store.kept_ids("words", SHARD)
    assert store.manifest("words", SHARD) is None


def test_a_damaged_manifest_says_what_to_delete(store):
    put(store, [[1]])
    (store.shard_dir("words", SHARD) / MANIFEST).write_text("{", "utf-8")
    with pytest.raises(UserError, match="delete"):
        store.manifest("words", SHARD)


def test_the_dropped_of_all_parts_are_one_file_in_id_order(store):
    rejections = tuple(
        Rejection(id=each, outcome="rejected", reason="too_odd", detail="") for each in ("w009", "w002", "w005")
    )
    put(store, [[1], [3]], dropped=rejections)
    assert [row["id"] for row in store.dropped("words", SHARD)] == ["w002", "w005", "w009"]
    folder = store.shard_dir("words", SHARD)
    assert names(folder) == ["part-00000.parquet", "part-00001.parquet", "rejected.parquet", "stage.json"]


def test_the_manifest_holds_the_digest_of_every_file(store):
    put(store, [[1], [3]])
    folder = store.shard_dir("words", SHARD)
    found = {path.name: file_digest(path) for path in folder.iterdir() if path.name != MANIFEST}
    assert store.manifest("words", SHARD)["files"] == found
    assert len(found) == 3


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full_disk(_descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"


def test_parquet_bytes_do_not_hang_on_how_the_table_was_put_together():
    whole = pa.table({"id": ["a", "b", "c"]})
    pieces = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    assert parquet_bytes(whole) == parquet_bytes(pieces.combine_chunks())
    assert pq.read_metadata(pa.BufferReader(parquet_bytes(whole, rows_per_group=2))).num_row_groups == 2


def test_a_reader_sees_the_old_shard_until_the_new_one_is_whole(store):
    put(store, [[1, 2]], key="old")
    with store.writing("words", SHARD, "new", Word) as writer:
        writer.begin(1)
        writer.write_part(0, [Word(id="w001", text="new", blob=b"")], [])
        assert store.manifest("words", SHARD)["key"] == "old"
        assert store.kept_ids("words", SHARD) == ["w001", "w002"]
        writer.finish({})
        assert store.manifest("words", SHARD)["key"] == "new"
    assert store.kept_ids("words", SHARD) == ["w001"]
    assert names(store.build_dir / "words") == [SHARD]


def test_the_old_shard_is_back_when_a_swap_was_cut_short_and_another_key_is_wanted_now(store):
    put(store, [[1, 2]], key="old")
    place = store.shard_dir("words", SHARD)
    place.rename(place.with_name(f"{SHARD}.old"))
    assert store.manifest("words", SHARD) is None
    with store.writing("words", SHARD, "third", Word):
        assert store.manifest("words", SHARD)["key"] == "old"
    assert names(store.build_dir / "words") == [SHARD]


def test_what_a_run_under_another_key_left_is_removed(store):
    with store.writing("words", SHARD, "abandoned", Word) as writer:
        writer.begin(2)
        writer.write_part(0, [], [])
    assert names(store.build_dir / "words") == [f"{SHARD}.building-abandoned"]
    put(store, [[1]], key="new")
    assert names(store.build_dir / "words") == [SHARD]


def test_a_whole_shard_is_no_longer_one_before_the_first_of_its_files_is_removed(store, monkeypatch):
    # A kill in the middle of the removal must not leave half a shard that looks whole.
    looked_whole = []
    remove = shutil.rmtree

    def watched(folder):
        looked_whole.append((Path(folder) / MANIFEST).exists())
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", watched)
    put(store, [[1]], key="old")
    store.shard_dir("words", SHARD).rename(store.build_dir / "words" / f"{SHARD}.building-old")
    put(store, [[1]], key="new")
    put(store, [[1]], key="newer")
    assert looked_whole == [False, False]


def test_parts_beyond_those_there_will_be_start_the_shard_anew(store):
    with store.writing("words", SHARD, "k", Word) as writer:
        writer.begin(3)
        for number in range(3):
            writer.write_part(number, [Word(id=f"w{number:03d}", text="", blob=b"")], [])
    with store.writing("words", SHARD, "k", Word) as writer:
        writer.begin(3)
        assert [writer.has_part(number) for number in range(3)] == [True] * 3
        writer.begin(2)
        assert [writer.has_part(number) for number in range(2)] == [False] * 2


def test_whoever_does_not_wait_is_told_which_process_holds_the_shard(tmp_path, processes):
    flag = tmp_path / "go"
    child = processes.Process(target=run_until_told, args=(str(tmp_path / "b"), str(flag)))
    child.start()
    while not Path(f"{flag}.started").exists():
        assert child.is_alive()
    with (
        pytest.raises(ShardBusyError, match=rf"words {SHARD} is being built by process {child.pid} on "),
        Store(tmp_path / "b").writing("words", SHARD, "k", Word, wait=False),
    ):
        pass
    with Store(tmp_path / "b").writing("words", "train-001", "k", Word, wait=False):
        pass  # another shard is free
    flag.touch()
    child.join(30)
    assert child.exitcode == 0


def test_a_killed_process_holds_nothing(tmp_path, processes):
    child = processes.Process(target=run_until_told, args=(str(tmp_path / "b"), str(tmp_path / "never")))
    child.start()
    while not (tmp_path / "never.started").exists():
        assert child.is_alive()
    child.kill()
    child.join(30)
    with Store(tmp_path / "b").writing("words", SHARD, "k", Word, wait=False) as writer:
        assert not writer.has_part(0)


@pytest.mark.parametrize("rebuilding", [False, True], ids=["first build", "rebuild beside an old shard"])
def test_a_kill_at_any_moment_costs_one_part_and_the_rerun_gives_the_same_bytes(tmp_path, processes, rebuilding):
    """Every change to a file or folder, one after the other, is the moment of death, files half written included."""
    whole = tmp_path / "whole"
    build(words_stage(7), whole)
    expected = digests(whole)
    parts = sum(name.startswith(f"words/{SHARD}/part-") for name in expected)
    assert parts == 2
    event, states = 0, []
    while True:
        folder = tmp_path / f"killed-{event}"
        store = Store(folder)
        if rebuilding:
            build(words_stage(7), folder, OLD)
            old_key = (store.manifest("words", SHARD) or {})["key"]
        child = processes.Process(target=run_and_die, args=(str(folder), event))
        child.start()
        child.join(60)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL

        # What a reader finds: the old shard or the new one, whole, or none between the two renames.
        manifest = store.manifest("words", SHARD)
        if manifest is not None:
            found = store.shard_dir("words", SHARD)
            assert manifest["files"] == {path.name: file_digest(path) for path in found.glob("*.parquet")}
        states.append("none" if manifest is None else "old" if rebuilding and manifest["key"] == old_key else "new")

        finished = {
            path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in folder.glob(f"words/{SHARD}*/part-*.parquet")
            if not rebuilding or ".building-" in path.parent.name or set(states) == {"new"}
        }
        result = build(words_stage(7), folder)
        place = store.shard_dir("words", SHARD)
        assert digests(folder) == expected
        assert names(folder / "words") == [SHARD]
        assert sorted(path.name for path in place.iterdir()) == [*sorted(result.manifest["files"]), MANIFEST]
        assert len(result.manifest["files"]) == parts + 1
        assert result.manifest["counts"] == {"in": 7, "kept": 5, "rejected": 1, "failed": 1}
        for name, was in finished.items():
            assert ((place / name).stat().st_ino, (place / name).stat().st_mtime_ns) == was
        assert json.loads((place / MANIFEST).read_text("utf-8")) == result.manifest
        event += 1
    assert event > 4 * parts  # two files a part, each written and renamed
    assert set(states) == {"none", "new", *(["old"] if rebuilding else [])}
    if rebuilding:
        assert states.count("none") == 1  # between the two renames of the swap
