from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline import audit, delivery
from pipeline.core.census import OTHER_VIDEO, SAME_PAIR, read_audit
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.seeds import generator_of
from pipeline.core.store import Store
from tests.synthetic_build import (
    TEST_VIDEOS,
    TRAIN_VIDEOS,
    frame_id,
    publish_build,
    small_profile,
    train_id,
    write_build,
)

LOST = {
    train_id(TRAIN_VIDEOS[0], "full", 0): "keypoints",
    train_id(TRAIN_VIDEOS[1], "goal", 0): "generate",
    frame_id(TEST_VIDEOS[2], "goal"): "attributes",
}
TRAIN, TEST = 16, 6


class MeanColours:
    """An embedder that counts what it embeds: the image in 4 x 6 blocks of mean colour about grey, at length 1."""

    name, revision = "fake", "1"

    def __init__(self, stop_after: int | None = None) -> None:
        self.embedded, self._stop_after = 0, stop_after

    def embed(self, images):
        if self._stop_after is not None and self.embedded >= self._stop_after:
            raise KeyboardInterrupt
        self.embedded += len(images)
        small = [np.asarray(Image.fromarray(each).resize((6, 4), Image.Resampling.BOX), np.float32) for each in images]
        rows = np.stack(small).reshape(len(images), -1) - 127
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audit")
    publish_build(*write_build(root, LOST, ["workers=1"]))
    return root


@pytest.fixture
def built(finished: Path, tmp_path: Path) -> tuple[Profile, Store]:
    """A copy of a finished build, delivered to its own place."""
    root = tmp_path / "copy"
    shutil.copytree(finished, root)
    profile = small_profile(root, ["workers=1"])
    store = Store(profile.work / "small")
    publish_build(profile, store)
    return profile, store


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> MeanColours:
    made = MeanColours()
    monkeypatch.setattr(audit, "_embedder", lambda *_: made)
    return made


def options(profile: Profile) -> list[str]:
    values = (
        f"work={profile.work}", f"out={profile.out}", "workers=1", "generate.images_per_caption=2",
        "frames.clips_per_shard=2", "footage.train_clips=3", "footage.val_clips=4", "publish.rows_per_file=7",
        "publish.rows_per_group=3",
    )  # fmt: skip
    return ["--build", "small", *(f"--set={value}" for value in values)]


def with_threshold(profile: Profile, cosine: float) -> Profile:
    return profile.model_copy(update={"audit": profile.audit.model_copy(update={"near_duplicate_cosine": cosine})})


def test_the_rows_are_those_of_the_dataset_train_first(built):
    import datasets

    profile, store = built
    rows = audit.read_rows(store)
    folder = datasets.load_dataset(str(profile.out), cache_dir=str(profile.work.parent / "cache"))
    for number, split in enumerate(("train", "test")):
        own = [at for at, of in enumerate(rows.splits) if of == number]
        table = folder[split].remove_columns(["image", "pose"])
        assert [rows.ids[at] for at in own] == table["image_id"]
        assert [rows.sha256[at] for at in own] == table["sha256"]
        assert [rows.pairs[at] for at in own] == table["pair_id"]
        assert [rows.hard[at] for at in own] == table["hard_image_id"]
        assert set(rows.videos[split].values()) == set(table["video"])
        for label in ("action", "anomaly", "scene"):
            there = [row[label] for row in table if label == "scene" or row["behavior"] == {"action": "normal"}.get(
                label, "anomaly")]  # fmt: skip
            assert rows.labels[split, label] == Counter(there)
    assert rows.splits == sorted(rows.splits)


def test_the_whole_audit_of_a_small_build(built, embedder):
    profile, store = built
    found, path = audit.audit_build(profile, "small")
    assert path == store.build_dir / "audit.json"
    assert embedder.embedded == TRAIN + TEST
    # "skates in a park2" is a training and a test video of the synthetic build.
    assert [each.level for each in found.findings if "skates in a park2" in each.text] == ["error"]
    assert sum(each.compared for each in found.pairs) == (TRAIN + TEST) * (TRAIN + TEST - 1) // 2
    assert {(each.split, each.rows, each.distinct) for each in found.captions if each.form == "exact"} == {
        ("train", TRAIN, TRAIN),
        ("test", TEST, TEST),
    }
    scenes = {each.split: each.top for each in found.labels if each.label == "scene"}
    assert scenes == {"train": (("park", TRAIN),), "test": (("park", TEST),)}
    assert {(each.split, each.kind): (each.rows, each.hard) for each in found.kinds} == {
        ("train", "goal"): (5, 5), ("train", "wentrong"): (6, 6), ("train", "full"): (5, 5),
        ("test", "goal"): (3, 3), ("test", "wentrong"): (3, 3),
    }  # fmt: skip
    assert not any(each.same_caption for each in found.kinds)
    data = json.loads(path.read_text("utf-8"))
    assert data["key"] == store.manifest("publish", "all")["key"]
    assert data["findings"] == [asdict(each) for each in found.findings]
    assert read_audit(path, data["key"]) == found


def test_a_hard_negative_with_the_caption_of_its_own_image_is_counted():
    rows = audit.Rows(
        ids=["a", "b", "c"], splits=[0, 0, 0], kinds=["goal", "full", "wentrong"], hard=["b", "a", None],
        normalised=[b"same", b"same", b"other"],
    )  # fmt: skip
    assert [(each.kind, each.rows, each.hard, each.same_caption) for each in audit._kinds(rows)] == [
        ("goal", 1, 1, 1),
        ("wentrong", 1, 0, 0),
        ("full", 1, 1, 1),
    ]


def plant(store: Store, into: str, image_of: str, shift: int) -> None:
    """Let one generated image be nearly another one."""
    import hashlib
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    def shard_of(record_id: str) -> str:
        return f"train-{record_id[-3:]}"

    original = store.rows("generate", shard_of(image_of), ["image"], [image_of])[image_of]["image"]
    pixels = np.asarray(Image.open(io.BytesIO(original))).astype(int)
    noise = generator_of("noise").integers(-shift, shift + 1, pixels.shape)
    buffer = io.BytesIO()
    Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    for path in sorted(store.shard_dir("generate", shard_of(into)).glob("part-*.parquet")):
        table = pq.read_table(path)
        rows = table.to_pylist()
        for row in rows:
            if row["id"] == into:
                row["image"] = original if shift == 0 else buffer.getvalue()
                row["sha256"] = hashlib.sha256(row["image"]).hexdigest()
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def test_a_planted_near_duplicate_of_another_video_is_found_and_drawn_and_one_of_the_same_person_is_apart(
    built, embedder
):
    profile, store = built
    before, _ = audit.audit_build(profile, "small")
    assert not [each for each in before.pairs if each.near]
    (store.build_dir / "audit.json").unlink()
    goal = train_id(TRAIN_VIDEOS[0], "goal", 1)
    other_video, same_person = train_id(TRAIN_VIDEOS[1], "goal", 1), train_id(TRAIN_VIDEOS[0], "full", 1)
    plant(store, other_video, goal, 20)
    plant(store, same_person, goal, 0)
    found, path = audit.audit_build(profile, "small")
    near = {(each.span, each.relation): (each.near, each.images) for each in found.pairs if each.near}
    assert near == {("train", OTHER_VIDEO): (2, 3), ("train", SAME_PAIR): (1, 2)}
    closest = next(each for each in found.closest if each.relation == OTHER_VIDEO and each.span == "train")
    assert {closest.first, closest.second} < {goal, other_video, same_person}
    assert found.copies.train == 1
    assert embedder.embedded == TRAIN + TEST + 1  # the copy has its vector already
    with Image.open(path.with_name("near_duplicates.png")) as page:
        assert min(page.size) > 300


def test_another_threshold_needs_no_engine(built, embedder, monkeypatch):
    profile, _ = built
    strict, path = audit.audit_build(with_threshold(profile, 0.9), "small")

    def no_engine(*_):
        raise AssertionError("the engine was asked for")

    monkeypatch.setattr(audit, "_embedder", no_engine)
    loose, _ = audit.audit_build(with_threshold(profile, 0.2), "small")
    assert sum(each.near for each in loose.pairs) > sum(each.near for each in strict.pairs)
    assert json.loads(path.read_text("utf-8"))["audit"]["near_duplicate_cosine"] == 0.2


def test_a_second_audit_does_nothing_and_one_whose_sheet_is_gone_draws_it_again_in_the_same_bytes(
    built, embedder, monkeypatch
):
    profile, store = built
    audit.audit_build(with_threshold(profile, 0.3), "small")
    files = {path: path.read_bytes() for path in store.build_dir.glob("*.*")}
    assert {path.name for path in files} == {"audit.json", "near_duplicates.png"}
    (store.build_dir / "near_duplicates.png").unlink()
    audit.audit_build(with_threshold(profile, 0.3), "small")
    assert {path: path.read_bytes() for path in store.build_dir.glob("*.*")} == files
    monkeypatch.setattr(audit, "read_rows", None)
    audit.audit_build(with_threshold(profile, 0.3), "small")


def test_a_run_that_is_stopped_keeps_the_vectors_it_has(built, monkeypatch):
    profile, _ = built
    monkeypatch.setattr(audit, "IMAGES_A_PART", 4)
    first, second = MeanColours(stop_after=7), MeanColours()
    monkeypatch.setattr(audit, "_embedder", lambda *_: first)
    with pytest.raises(KeyboardInterrupt):
        audit.audit_build(profile, "small")
    assert 0 < first.embedded < TRAIN + TEST
    monkeypatch.setattr(audit, "_embedder", lambda *_: second)
    audit.audit_build(profile, "small")
    assert first.embedded + second.embedded == TRAIN + TEST


@pytest.mark.parametrize("harm", ["cut", "empty", "another form", "pickled"])
def test_damaged_vectors_are_made_anew_and_nothing_in_them_is_run(built, embedder, harm):
    profile, store = built
    found, _ = audit.audit_build(profile, "small")
    victim = sorted(audit.vectors_folder(profile, store).glob("*.npy"))[0]
    count = len(np.load(victim))
    if harm == "cut":
        victim.write_bytes(victim.read_bytes()[:-100])
    elif harm == "empty":
        victim.write_bytes(b"")
    elif harm == "another form":
        np.save(victim, np.zeros(3))
    else:
        np.save(victim, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (store.build_dir / "audit.json").unlink()
    again, _ = audit.audit_build(profile, "small")
    assert again == found
    assert embedder.embedded == TRAIN + TEST + count


def test_an_image_that_is_not_that_of_its_sha256_is_not_embedded(built, embedder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    profile, store = built
    path = store.shard_dir("generate", "train-001") / "part-00000.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["image"] = rows[1]["image"]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    with pytest.raises(UserError, match="not that of its sha256"):
        audit.audit_build(profile, "small")


def test_vectors_are_found_by_image_in_any_order_and_a_missing_one_is_an_error(tmp_path):
    names = [f"{number:064d}" for number in range(9)]
    numbers = np.arange(27, dtype=np.float32).reshape(9, 3) + 1
    audit.write_part(tmp_path, "a", names[:5], numbers[:5])
    audit.write_part(tmp_path, "b", names[5:], numbers[5:])
    vectors = audit.Vectors(tmp_path)
    asked = [8, 0, 5, 5, 4]
    expected = numbers / np.linalg.norm(numbers, axis=1, keepdims=True)
    found = vectors.of(np.array([names[at] for at in asked], dtype="S64"))
    assert np.allclose(found, expected[asked], atol=1e-6)
    assert vectors.missing(np.array([names[3], "f" * 64], dtype="S64")).tolist() == [False, True]
    with pytest.raises(KeyError):
        vectors.of(np.array(["f" * 64], dtype="S64"))
    with pytest.raises(ValueError, match="NaN"):
        audit.write_part(tmp_path, "c", ["0" * 64], np.full((1, 3), np.nan, dtype=np.float32))


def test_the_command_prints_the_tables_puts_them_into_the_card_and_ends_with_one_for_a_leak(built, embedder, capsys):
    profile, store = built
    assert "Not audited; `python -m pipeline.audit` does it." in (profile.out / "README.md").read_text("utf-8")
    assert audit.main(options(profile)) == 1
    printed = capsys.readouterr().out
    for said in ("error    1 videos are in train and in test", "Near-duplicate images", "audit.json"):
        assert said in printed
    text = (profile.out / "README.md").read_text("utf-8")
    assert "* error: 1 videos are in train and in test: skates in a park2" in text
    assert delivery.delivery_stands(profile, store)
    times = {path: path.stat().st_mtime_ns for path in profile.out.rglob("*")}
    assert publish_build(profile, store).built is False
    assert audit.main(options(profile)) == 1
    assert {path: path.stat().st_mtime_ns for path in profile.out.rglob("*")} == times


def test_a_folder_that_is_another_builds_keeps_its_card(built, embedder, capsys):
    profile, store = built
    publish_build(profile.model_copy(update={"title": "another build"}), store)
    before = (profile.out / "README.md").read_bytes()
    assert audit.main(options(profile)) == 1
    assert "does not hold this build's dataset, so its card stays" in capsys.readouterr().out
    assert (profile.out / "README.md").read_bytes() == before


def test_a_build_that_is_not_finished_or_not_there_is_one_clear_line(tmp_path, capsys):
    profile, _ = write_build(tmp_path)
    for build in ("small", "nowhere"):
        assert audit.main([*options(profile), "--build", build]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "is not finished: run python -m pipeline.build first" in error


def test_the_real_engine_in_two_processes_gives_the_vectors_it_gives_in_one(built):
    profile, store = built
    two = profile.model_copy(update={"workers": 2})
    rows = audit.read_rows(store)
    vectors = audit.embed_all(two, store, rows).of(rows.digests)
    shutil.rmtree(store.build_dir / "audit")
    again = audit.embed_all(profile, store, rows).of(rows.digests)
    assert vectors.shape == (TRAIN + TEST, 1280)
    assert np.array_equal(vectors, again)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pipeline import audit\n"
        "try: audit.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'datasets', 'torch', 'pyarrow', 'faiss', 'cv2'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parent.parent
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - start < 10
