from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline import delivery, verify
from pipeline import report as reports
from pipeline.core.errors import UserError
from pipeline.core.store import file_digest
from pipeline.publish import STAGE, Candidate, delivery_stands, hard_partners
from schemas.records import Attributes, Decomposition, PublishedRejection, PublishedRow, Rejection
from tests.synthetic_build import (
    TEST_VIDEOS,
    TRAIN_VIDEOS,
    caption_of,
    frame_id,
    jpeg,
    publish_build,
    train_id,
    write_build,
)

LOST = {
    train_id(TRAIN_VIDEOS[0], "full", 0): "keypoints",
    train_id(TRAIN_VIDEOS[1], "goal", 0): "generate",
    train_id(TRAIN_VIDEOS[2], "goal", 0): "keypoints",
    train_id(TRAIN_VIDEOS[2], "goal", 1): "keypoints",
    frame_id(TEST_VIDEOS[2], "goal"): "decompose",
}
DROPPED = len(LOST) + 1  # the partner of the lost frame goes with it


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory):
    profile, store = write_build(tmp_path_factory.mktemp("build"), LOST)
    result = publish_build(profile, store)
    return profile, store, result


@pytest.fixture
def loaded(published, tmp_path, monkeypatch):
    """`load_dataset` of the published folder from another working directory, with a cache of its own."""
    import datasets

    profile, _, _ = published
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)

    def load(*names: str, **options):
        return datasets.load_dataset(str(profile.out), *names, cache_dir=str(tmp_path / "cache"), **options)

    return load


def every_file(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): file_digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


candidates = st.lists(
    st.tuples(st.sampled_from("vw"), st.sampled_from(["goal", "wentrong", "full"]), st.integers(0, 3)), unique=True
).map(
    lambda rows: [
        Candidate(f"{video}_{kind}_{shard}", video, kind, f"train-{shard:03d}") for video, kind, shard in rows
    ]
)


def allowed_by_brute_force(image: Candidate, images: list[Candidate]) -> set[Candidate]:
    """Every image that the rule lets be the hard negative of this one."""
    same_video = [each for each in images if each.video == image.video]
    for pool in (
        [each for each in same_video if each.shard == image.shard],
        [each for each in same_video if each.shard != image.shard],
    ):
        best = set()
        for shard in {each.shard for each in pool}:
            kinds = {each.kind: each for each in pool if each.shard == shard}
            if image.kind == "goal":
                best |= {kinds["full"]} if "full" in kinds else {kinds["wentrong"]} if "wentrong" in kinds else set()
            else:
                best |= {kinds["goal"]} if "goal" in kinds else set()
        if best:
            return best
    return set()


@given(images=candidates)
def test_a_hard_negative_is_one_the_rule_allows_and_is_missing_only_where_there_is_none(images):
    partners = hard_partners(images)
    assert set(partners) == {image.id for image in images}
    for image in images:
        allowed = allowed_by_brute_force(image, images)
        assert partners[image.id] in allowed if allowed else partners[image.id] is None


@given(images=candidates, data=st.data())
def test_hard_negatives_do_not_depend_on_the_order_of_the_images(images, data):
    assert hard_partners(data.draw(st.permutations(images))) == hard_partners(images)


def test_the_other_shard_is_drawn_by_the_id_of_the_image():
    goals = [Candidate(f"v_goal_{shard}", "v", "goal", f"train-{shard:03d}") for shard in range(8)]
    drawn = set()
    for number in range(60):
        alone = Candidate(f"v_full_{number}", "v", "full", "train-900")
        partner = hard_partners([*goals, alone])[alone.id]
        assert partner is not None
        drawn.add(partner.shard)
    assert len(drawn) == len(goals)


def test_every_image_is_published_or_dropped_with_a_reason(published):
    _, store, result = published
    assert result.manifest["counts"]["rejected"] == 1
    assert [row["id"] for row in store.dropped("publish", "all")] == [frame_id(TEST_VIDEOS[2], "wentrong")]
    assert set(result.manifest["reasons"]) == set(STAGE.reasons)
    train, test = 2 * 3 * len(TRAIN_VIDEOS), 2 * len(TEST_VIDEOS)
    assert result.manifest["counts"]["kept"] == train + test - DROPPED


def test_both_configs_load_from_another_folder_and_images_decode(loaded):
    dataset, rejected = loaded(), loaded("rejected")
    assert {name: split.num_rows for name, split in dataset.items()} == {"train": 14, "test": 6}
    assert rejected["rejected"].num_rows == DROPPED
    row = dataset["train"][0]
    assert row["image"].size == row["pose"].size == (row["width"], row["height"]) == (48, 32)
    by_stage = {(each["stage"], each["id"]) for each in rejected["rejected"]}
    assert {(stage, record_id) for record_id, stage in LOST.items()} < by_stage


def test_streaming_gives_the_same_rows_as_loading(loaded):
    whole = loaded(split="train").remove_columns(["image", "pose"]).to_list()
    streamed = loaded(split="train", streaming=True).remove_columns(["image", "pose"])
    assert list(streamed) == whole
    first = next(iter(loaded(split="test", streaming=True)))
    assert first["image"].mode == first["pose"].mode == "RGB"


def test_a_row_holds_what_the_stages_wrote(loaded):
    import datasets

    rows = {}
    for split in loaded().values():
        rows |= {row["image_id"]: row for row in split.cast_column("image", datasets.Image(decode=False))}
    goal = rows[train_id(TRAIN_VIDEOS[0], "goal", 1)]
    assert goal["image"] == {"bytes": jpeg(goal["image_id"]), "path": f"{goal['image_id']}.jpg"}
    assert goal["caption"] == caption_of(goal["image_id"])
    assert goal["source_caption"] == f"a man {TRAIN_VIDEOS[0]} (goal)"
    assert (goal["action"], goal["anomaly"], goal["generator"]["name"]) == ("walking", None, "simulator")
    assert goal["hard_image_id"] == train_id(TRAIN_VIDEOS[0], "full", 1)
    assert goal["hard_caption"] == caption_of(goal["hard_image_id"])
    assert goal["hard_factors"] == {"appearance": "a red jacket", "action": None, "background": None}
    assert goal["keypoints"][0]["keypoints"][50] == 50.0
    assert rows[train_id(TRAIN_VIDEOS[0], "goal", 0)]["hard_image_id"] == train_id(TRAIN_VIDEOS[0], "wentrong", 0)
    assert rows[train_id(TRAIN_VIDEOS[1], "full", 0)]["hard_image_id"] == train_id(TRAIN_VIDEOS[1], "goal", 1)
    alone = rows[train_id(TRAIN_VIDEOS[2], "full", 0)]
    assert (alone["hard_image_id"], alone["hard_caption"], alone["hard_factors"]) == (None, None, None)
    frame = rows[frame_id(TEST_VIDEOS[0], "wentrong")]
    assert frame["source_caption"] == f"a man {TEST_VIDEOS[0]} (wentrong)"
    assert (frame["hard_image_id"], frame["transition_time_s"]) == (frame_id(TEST_VIDEOS[0], "goal"), 2.5)
    assert rows[frame_id(TEST_VIDEOS[3], "goal")]["source_caption"] is None


def test_rows_lie_by_shard_and_id_cut_into_files_and_row_groups_as_the_profile_says(published):
    profile, store, _ = published
    files = sorted((profile.out / "data").glob("train-*"))
    assert [path.name for path in files] == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    read = [pq.ParquetFile(path) for path in files]
    groups = [[each.metadata.row_group(n).num_rows for n in range(each.metadata.num_row_groups)] for each in read]
    assert groups == [[3, 3, 1], [3, 3, 1]]
    ids = [record_id for each in read for record_id in each.read(["image_id"])["image_id"].to_pylist()]
    shards = {row["id"]: row["shard"] for row in delivery.read_publications(store)}
    assert ids == sorted(ids, key=lambda record_id: (shards[record_id], record_id))


def test_all_files_of_a_config_have_the_one_schema_of_the_records_also_where_a_column_is_all_null(published):
    profile, _, _ = published
    for folder, model in (("data", PublishedRow), ("rejected", PublishedRejection)):
        schemas = [pq.read_schema(path) for path in sorted((profile.out / folder).glob("*.parquet"))]
        expected = delivery.features_of(model).arrow_schema
        assert len(schemas) > 1 or folder == "rejected"
        # ... all but the name of a list's inner field, which Parquet calls `element`.
        assert all(schema.equals(expected) for schema in schemas)
        assert {schema.metadata[b"huggingface"] for schema in schemas} == {expected.metadata[b"huggingface"]}
    all_null = pq.read_table(profile.out / "data" / "train-00000-of-00002.parquet", columns=["transition_time_s"])
    assert all_null["transition_time_s"].null_count == all_null.num_rows


def test_the_columns_are_the_fields_of_the_published_row_and_the_images_are_image_features(loaded, published):
    import datasets

    features = loaded(split="train").features
    assert list(features) == list(PublishedRow.model_fields)
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    assert images == ["image", "pose"]
    assert loaded("rejected", split="rejected").features.to_dict() == delivery.features_of(PublishedRejection).to_dict()


def test_two_builds_in_two_places_are_byte_identical(published, tmp_path):
    profile, _, _ = published
    other, store = write_build(tmp_path / "elsewhere", LOST, ["workers=1"])
    publish_build(other, store)
    files = every_file(profile.out)
    assert list(files) == [
        "README.md",
        "data/test-00000-of-00001.parquet",
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "rejected/rejected-00000-of-00001.parquet",
    ]
    assert every_file(other.out) == files


def test_the_hash_seed_of_the_process_changes_no_byte(published, tmp_path):
    profile, _, _ = published
    code = (
        "import sys, pathlib; from tests.synthetic_build import write_build, publish_build; "
        "from tests.test_publish import LOST; lost = dict(reversed(LOST.items())); "
        "publish_build(*write_build(pathlib.Path(sys.argv[1]), lost))"
    )
    root = Path(__file__).resolve().parent.parent
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, cwd=root, env={**os.environ, "PYTHONHASHSEED": "77"}
    )
    assert every_file(tmp_path / "out" / "pab") == every_file(profile.out)


def test_no_path_of_the_machine_is_in_the_dataset(published):
    profile, _, _ = published
    for path in profile.out.rglob("*"):
        if path.is_file():
            assert os.fsencode(profile.work.parent) not in path.read_bytes()


@pytest.fixture
def fresh(tmp_path):
    profile, store = write_build(tmp_path / "fresh", LOST)
    publish_build(profile, store)
    return profile, store


def test_a_second_run_writes_nothing(fresh):
    profile, store = fresh
    before = {path: path.stat().st_mtime_ns for path in profile.out.rglob("*")}
    assert delivery_stands(profile, store)
    assert publish_build(profile, store).built is False
    assert {path: path.stat().st_mtime_ns for path in profile.out.rglob("*")} == before


@pytest.mark.parametrize("harm", ["removed", "cut", "folder gone", "card gone"])
def test_a_damaged_dataset_is_delivered_again(fresh, harm):
    profile, store = fresh
    before = every_file(profile.out)
    victim = profile.out / "data" / "test-00000-of-00001.parquet"
    if harm == "removed":
        victim.unlink()
    elif harm == "cut":
        victim.write_bytes(victim.read_bytes()[:-10])
    elif harm == "folder gone":
        profile.out.rename(profile.out.with_name("moved away"))
    else:
        (profile.out / "README.md").unlink()
    assert not delivery_stands(profile, store)
    if harm == "card gone":
        # Without its card the folder could be anybody's.
        with pytest.raises(UserError, match="something else"):
            publish_build(profile, store)
        return
    assert publish_build(profile, store).built is False
    assert every_file(profile.out) == before


def test_another_cut_into_files_is_delivered_without_running_the_stage_again(fresh):
    profile, store = fresh
    changed = profile.model_copy(update={"publish": profile.publish.model_copy(update={"rows_per_file": 5})})
    assert publish_build(changed, store).built is False
    names = sorted(path.name for path in (profile.out / "data").glob("train-*"))
    assert names == [f"train-{number:05d}-of-00003.parquet" for number in range(3)]


@pytest.mark.parametrize("strays", [["notes.txt"], ["README.md"], ["data/train-00000-of-00001.parquet"]])
def test_a_folder_that_is_not_ours_is_refused_and_stays_as_it_is(tmp_path, strays):
    profile, store = write_build(tmp_path)
    for name in strays:
        (profile.out / name).parent.mkdir(parents=True, exist_ok=True)
        (profile.out / name).write_text("---\ntags: [mine]\n---\nkeep me", "utf-8")
    before = every_file(profile.out)
    with pytest.raises(UserError) as error:
        publish_build(profile, store)
    assert "\n" not in str(error.value)
    assert every_file(profile.out) == before
    assert [path.name for path in profile.out.parent.iterdir()] == ["pab"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    profile, store = write_build(tmp_path)
    profile.out.parent.mkdir(parents=True)
    profile.out.write_text("a file", "utf-8")
    with pytest.raises(UserError, match="not a folder"):
        publish_build(profile, store)
    assert profile.out.read_text("utf-8") == "a file"


def test_an_empty_folder_is_used(tmp_path):
    profile, store = write_build(tmp_path)
    profile.out.mkdir(parents=True)
    publish_build(profile, store)
    assert delivery_stands(profile, store)


def test_strays_in_the_folder_are_not_loaded_and_survive_a_new_delivery(fresh, tmp_path):
    import datasets

    profile, store = fresh
    strays = ["notes.txt", "data/train-extra.parquet", "data/train-00000-of-00009.parquet", "more/images/x.json"]
    for name in strays:
        (profile.out / name).parent.mkdir(parents=True, exist_ok=True)
        (profile.out / name).write_text('{"text": "a stray"}', "utf-8")
    dataset = datasets.load_dataset(str(profile.out), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in dataset.items()} == {"train": 14, "test": 6}
    changed = profile.model_copy(update={"title": "another title"})
    publish_build(changed, store)
    assert "another title" in (profile.out / "README.md").read_text("utf-8")
    there = every_file(profile.out)
    # A file that bears the name of one of ours is taken for one.
    assert {"notes.txt", "data/train-extra.parquet", "more/images/x.json"} < set(there)
    assert "data/train-00000-of-00009.parquet" not in there


def test_a_kill_at_any_rename_of_the_swap_loses_neither_the_dataset_nor_strays(fresh, monkeypatch):
    profile, store = fresh
    (profile.out / "notes.txt").write_text("keep me", "utf-8")
    real_rename, real_rmtree = Path.rename, shutil.rmtree
    changes = itertools.count()

    class Killed(BaseException):
        pass

    for steps in range(6):
        changed = profile.model_copy(update={"title": f"title {next(changes)}"})
        left = [steps]

        def step() -> None:
            if left[0] == 0:  # noqa: B023
                raise Killed
            left[0] -= 1  # noqa: B023

        def rename(path: Path, target: Path) -> Path:
            step()
            return real_rename(path, target)

        def rmtree(path: Path) -> None:
            step()
            real_rmtree(path)

        monkeypatch.setattr(Path, "rename", rename)
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        try:
            publish_build(changed, store)
            finished = True
        except Killed:
            finished = False
        monkeypatch.setattr(Path, "rename", real_rename)
        monkeypatch.setattr(shutil, "rmtree", real_rmtree)
        publish_build(changed, store)
        assert delivery_stands(changed, store)
        assert (profile.out / "notes.txt").read_text("utf-8") == "keep me"
        assert [path.name for path in profile.out.parent.iterdir()] == ["pab"]
        if finished:
            break
    assert steps > 2


def test_a_dataset_that_a_kill_left_aside_is_back_even_where_the_next_delivery_fails(fresh, monkeypatch):
    profile, store = fresh
    before = every_file(profile.out)
    profile.out.rename(delivery.Place(profile.out, store.build_dir)._old)

    def disk_full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(delivery, "write_dataset", disk_full)
    with pytest.raises(OSError, match="no space left"):
        publish_build(profile.model_copy(update={"title": "another title"}), store)
    assert every_file(profile.out) == before


def test_an_empty_split_is_left_out_of_the_card_with_a_warning_and_the_rest_loads(tmp_path):
    import datasets

    lost = {frame_id(video, kind): "frames" for video in TEST_VIDEOS for kind in ("goal", "wentrong")}
    profile, store = write_build(tmp_path, lost)
    publish_build(profile, store)
    dataset = datasets.load_dataset(str(profile.out), cache_dir=str(tmp_path / "cache"))
    assert list(dataset) == ["train"]
    assert "no test image came through" in (profile.out / "README.md").read_text("utf-8")
    assert not list((profile.out / "data").glob("test-*"))


def test_a_real_folder_under_a_simulated_profile_is_not_titled_as_simulated(published, tmp_path):
    profile, _, _ = published
    assert profile.footage is not None
    assert "simulated" in delivery._title(profile)
    real = profile.model_copy(update={"oops": profile.oops.model_copy(update={"root": tmp_path})})
    assert delivery._title(real) == "PAB rebuilt on an OOPS! folder"


def test_nothing_dropped_leaves_the_rejected_config_out(tmp_path):
    import datasets

    profile, store = write_build(tmp_path)
    publish_build(profile, store)
    assert datasets.get_dataset_config_names(str(profile.out)) == ["default"]
    assert not (profile.out / "rejected").exists()


def test_an_image_is_a_jpeg_and_a_pose_map_a_png_named_by_the_id(published):
    profile, _, _ = published
    table = pq.read_table(profile.out / "data" / "test-00000-of-00001.parquet", columns=["image", "pose", "image_id"])
    for row in table.to_pylist():
        assert Image.open(io.BytesIO(row["image"]["bytes"])).format == "JPEG"
        assert Image.open(io.BytesIO(row["pose"]["bytes"])).format == "PNG"
        assert row["pose"]["path"] == f"{row['image_id']}_pose.png"


FIGURE = {"group": "colours", "name": "top", "value": 0.5, "of": 2, "at_least": 0.9, "note": "", "met": False}


def report(store, key: str | None = None) -> None:
    """As `pipeline.verify --truth` leaves it."""
    data = {"key": key or store.manifest("publish", "all")["key"], "figures": [FIGURE]}
    (store.build_dir / "truth_report.json").write_text(json.dumps(data), "utf-8")


def test_what_is_measured_comes_into_the_card_alone_and_stays_there(fresh):
    profile, store = fresh
    card = profile.out / "README.md"
    before = every_file(profile.out)
    report(store)
    assert not delivery_stands(profile, store)
    assert delivery.refresh_card(profile, store)
    assert "| colours | top | **50.0 %** | 90 % | 2 |  |" in card.read_text("utf-8")
    after = every_file(profile.out)
    assert {name for name in after if after[name] != before.get(name)} == {"README.md"}
    times = {path: path.stat().st_mtime_ns for path in profile.out.rglob("*")}
    assert delivery_stands(profile, store)
    assert delivery.refresh_card(profile, store)
    assert publish_build(profile, store).built is False
    assert {path: path.stat().st_mtime_ns for path in profile.out.rglob("*")} == times


def test_the_report_of_verify_is_what_the_card_reads(fresh):
    profile, store = fresh
    verify.write_report(profile, "small", [verify.Figure("labels", "scene", 0.25, 4, 0.85, "1 without")])
    assert delivery.refresh_card(profile, store)
    text = (profile.out / "README.md").read_text("utf-8")
    assert "0 of 1 targets are met" in text
    assert "| labels | scene | **25.0 %** | 85 % | 4 | 1 without |" in text


def test_a_new_delivery_has_the_bytes_that_a_refreshed_one_has(fresh):
    profile, store = fresh
    report(store)
    assert delivery.refresh_card(profile, store)
    refreshed = every_file(profile.out)
    delivery.delivery_note(store).unlink()
    publish_build(profile, store)
    assert every_file(profile.out) == refreshed


def test_what_was_measured_on_another_build_stays_out_of_the_card(fresh):
    profile, store = fresh
    before = every_file(profile.out)
    report(store, key="of another build")
    assert delivery_stands(profile, store)
    assert delivery.refresh_card(profile, store)
    publish_build(profile, store)
    assert every_file(profile.out) == before
    assert "Not measured on this build" in (profile.out / "README.md").read_text("utf-8")


@pytest.mark.parametrize("harm", ["not delivered", "another dataset", "data cut", "card gone"])
def test_a_folder_that_does_not_hold_this_delivery_gets_no_card(fresh, harm):
    profile, store = fresh
    report(store)
    if harm == "not delivered":
        delivery.delivery_note(store).unlink()
    elif harm == "another dataset":
        publish_build(profile.model_copy(update={"title": "another title"}), store)
    elif harm == "data cut":
        victim = profile.out / "data" / "test-00000-of-00001.parquet"
        victim.write_bytes(victim.read_bytes()[:-10])
    else:
        (profile.out / "README.md").unlink()
    before = every_file(profile.out)
    assert delivery.refresh_card(profile, store) is False
    assert every_file(profile.out) == before


def test_a_card_that_was_edited_is_put_right_and_the_data_is_not_copied_again(fresh):
    profile, store = fresh
    card = profile.out / "README.md"
    before = card.read_bytes()
    times = {path: path.stat().st_mtime_ns for path in (profile.out / "data").iterdir()}
    card.write_bytes(before + b"edited")
    assert not delivery_stands(profile, store)
    assert publish_build(profile, store).built is False
    assert card.read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in (profile.out / "data").iterdir()} == times


def test_half_a_card_that_a_kill_left_goes_with_the_next_delivery(fresh):
    profile, store = fresh
    half = profile.out / ".README.md.4711.tmp"
    half.write_text("---", "utf-8")
    assert delivery_stands(profile, store)
    publish_build(profile.model_copy(update={"title": "another title"}), store)
    assert not half.exists()


def test_the_settings_of_the_audit_are_no_reason_to_deliver_again(fresh):
    profile, store = fresh
    audited = profile.model_copy(update={"audit": profile.audit.model_copy(update={"near_duplicate_cosine": 0.5})})
    assert delivery_stands(audited, store)


def test_a_note_without_the_cards_facts_counts_as_nothing_delivered(fresh):
    profile, store = fresh
    before = every_file(profile.out)
    note = json.loads(delivery.delivery_note(store).read_text("utf-8"))
    del note["facts"]
    delivery.delivery_note(store).write_text(json.dumps(note), "utf-8")
    assert not delivery_stands(profile, store)
    publish_build(profile, store)
    assert delivery_stands(profile, store)
    assert every_file(profile.out) == before


def test_a_dataset_built_again_is_loaded_anew_though_the_cache_knows_its_folder(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    out = f"out={tmp_path / 'out' / 'pab'}"
    rows: list[int] = []
    digests: set[str] = set()
    for lost in ({}, {train_id(TRAIN_VIDEOS[0], "goal", 0): "keypoints"}):
        profile, store = write_build(tmp_path / str(len(lost)), lost, [out])
        publish_build(profile, store)
        rows.append(len(datasets.load_dataset(str(profile.out), split="train")))
        digests |= set(
            re.findall(r"Digest of the data files: `([0-9a-f]{64})`", (profile.out / "README.md").read_text())
        )
    assert rows[1] == rows[0] - 1
    assert len(digests) == 2


def with_labels(store, shard, labels):
    """The attributes of a shard with other labels: id -> fields."""
    rows = store.table("attributes", shard, list(Attributes.model_fields)).to_pylist()
    manifest = store.manifest("attributes", shard)
    records = [Attributes.model_validate({**row, **labels.get(row["id"], {})}) for row in rows]
    with store.writing("attributes", shard, f"{manifest['key']}-labels", Attributes) as writer:
        writer.begin(1)
        writer.write_part(0, records, [Rejection(**row) for row in store.dropped("attributes", shard)])
        writer.finish({key: value for key, value in manifest.items() if key not in ("stage", "shard", "key", "files")})


def test_a_vocabulary_gives_every_row_the_class_of_its_labels_and_a_file_with_the_classes(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    profile, store = write_build(tmp_path / "classes", overrides=["publish.vocabulary=true"])
    for shard, scenes in (("train-000", ("parking lots", "a parking lot")), ("test-000", ("parking lot", None))):
        ids = store.kept_ids("attributes", shard)
        with_labels(store, shard, {name: {"scene": scenes[number % 2]} for number, name in enumerate(ids)})
    publish_build(profile, store)
    assert delivery_stands(profile, store)
    told = json.loads((profile.out / "vocabulary.json").read_text("utf-8"))
    loaded = datasets.load_dataset(str(profile.out), cache_dir=str(tmp_path / "cache"))
    rows = [row for split in loaded.values() for row in split.remove_columns(["image", "pose"])]
    assert list(told) == ["action", "anomaly", "scene"]
    for question, made in told.items():
        names = {label: each["class"] for each in made for label in each["labels"]}
        assert {row[question] for row in rows} - {None} == set(names)
        for row in rows:
            assert row[f"{question}_class"] == (names[row[question]] if row[question] else None)
        for each in made:
            own = [row[question] for row in rows if row[question] in each["labels"]]
            assert (each["count"], each["labels"]) == (len(own), {label: own.count(label) for label in each["labels"]})
    scenes = {each["class"]: set(each["labels"]) for each in told["scene"]}
    assert {"parking lot", "parking lots", "a parking lot"} in scenes.values()
    card = (profile.out / "README.md").read_text("utf-8")
    assert "| `scene_class` | the class of `scene` in `vocabulary.json`" in card
    assert f"{len(told['scene'])} of scene" in card
    # Without it, the next delivery takes the columns and the file away again.
    plain = profile.model_copy(update={"publish": profile.publish.model_copy(update={"vocabulary": False})})
    publish_build(plain, store)
    assert not (plain.out / "vocabulary.json").exists()
    assert "scene_class" not in (plain.out / "README.md").read_text("utf-8")
    assert "scene_class" not in pq.read_schema(next(plain.out.glob("data/train-*.parquet"))).names


def test_the_card_and_the_report_say_what_became_of_the_questions(tmp_path):
    profile, store = write_build(tmp_path / "counted", LOST)
    shard, stage = "train-000", "decompose"
    rows = store.table(stage, shard, list(Decomposition.model_fields)).to_pylist()
    records = [Decomposition.model_validate(row) for row in rows]
    records[0] = records[0].model_copy(update={"answered": "retried"})
    records[1] = records[1].model_copy(update={"answered": "in part", "unfaithful": ("action",)})
    lost = [("x", "rejected", "refusal"), ("y", "failed", "reply_cut"), ("z", "failed", "decomposer_error"),
            ("u", "rejected", "unparsable")]  # fmt: skip
    dropped = [Rejection(id=name, outcome=outcome, reason=reason, detail="") for name, outcome, reason in lost]
    with store.writing(stage, shard, "counted", Decomposition) as writer:
        writer.begin(1)
        writer.write_part(0, records, dropped)
        counts = {"in": len(records) + 4, "kept": len(records), "rejected": 2, "failed": 2}
        writer.finish({"counts": counts, "reasons": {reason: 1 for *_, reason in lost}, "seconds": 1.0})
    found = {
        (each.stage, each.split): each for each in delivery.reply_counts(store, [(stage, shard), ("sources", shard)])
    }
    assert list(found) == [("decompose", "train")]
    told = found["decompose", "train"]
    assert told.asked == len(records) + 4
    assert told.outcomes() == {"first try": len(records) - 2, "retried": 1, "in part": 1, "refused": 1, "cut": 1,
                               "error": 1, "no use": 1}  # fmt: skip
    publish_build(profile, store)
    card = (profile.out / "README.md").read_text("utf-8")
    line = next(line for line in card.splitlines() if line.startswith("| decompose | train |") and "(" in line)
    assert line.count("| 1 (") == 6
    assert "train replies  decompose: first try" in reports.format_summary(reports.summary(profile, "small"))
