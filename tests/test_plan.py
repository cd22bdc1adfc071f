"""What `python -m pipeline.plan` prints, and what it measures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline import plan, stages, timing
from pipeline.core.errors import UserError
from pipeline.core.gpus import Gpu
from pipeline.core.planning import CPU, MEASURED, PUBLISHED, Rates, Speed, load_rates
from pipeline.core.profile import load_profile, profile_names
from pipeline.core.store import Store
from pipeline.plan import format_plan, make_plan
from pipeline.timing import ShardTimes, miniature, timed
from pipeline.workload import counts_of, kept_of_build, workload
from schemas.records import Rejection, SourceCaption
from tests.stage_helpers import MINI
from tests.test_generate import source

HOUR = 3600


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def planned(name: str, tmp_path: Path, *overrides: str, **hardware):
    profile = load_profile(name, [f"work={tmp_path}", f"out={tmp_path / 'out'}", *overrides])
    return make_plan(profile, name, load_rates(), name, **hardware)


def step(made, stage: str):
    return next(each for each in made.steps if each.work.stage == stage)


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_has_a_plan_with_a_line_a_stage_and_a_time_for_each(name, tmp_path):
    made = planned(name, tmp_path)
    text = format_plan(made)
    for stage in stages.STAGE_NAMES:
        assert any(line.startswith(f"{stage} ") for line in text.splitlines()), stage
        assert step(made, stage).wall is not None, stage
    assert max(len(line) for line in text.splitlines() if not line.startswith("  *")) < 170
    unknown = [piece for piece in made.missing if "has no setting" in piece.what]
    assert unknown == []


def test_full_is_the_papers_volume(tmp_path):
    made = planned("full", tmp_path)
    assert step(made, "generate").work.items == 1_529_025
    assert step(made, "keypoints").work.kept == pytest.approx(1_013_605 + 5_089, rel=0.015)
    assert step(made, "recaption").work.requests == step(made, "recaption").work.items
    assert step(made, "attributes").work.requests == 2 * step(made, "attributes").work.items
    assert step(made, "recaption").work.tokens_out / step(made, "recaption").work.items == 68
    assert made.counts.origin == PUBLISHED
    assert (made.gpu, made.gpus) == ("h100", 8)
    chat = [step(made, stage) for stage in ("recaption", "attributes")]
    assert sum(each.busy.low for each in chat) / HOUR == pytest.approx(18 + 0.8, rel=0.1)
    assert step(made, "generate").work.disk_bytes == pytest.approx(159e9, rel=0.01)


def test_25_and_50_steps_take_the_published_hours(tmp_path):
    for steps, low, high in ((25, 225, 340), (50, 450, 680)):
        made = planned("full", tmp_path, f"generate.settings.steps={steps}", gpu="a100", gpus=1)
        hours = step(made, "generate").busy * (1 / HOUR)
        assert (hours.low, hours.high) == (pytest.approx(low, rel=0.01), pytest.approx(high, rel=0.01))
        assert step(made, "generate").origin == PUBLISHED


def test_the_pilot_takes_under_two_hours_on_one_gpu_of_24_gb(tmp_path):
    for gpu in ("rtx3090", "l4"):
        made = planned("pilot", tmp_path, gpu=gpu, gpus=1)
        assert load_rates().devices[gpu].memory_gib == 24
        assert step(made, "generate").work.items == 800
        assert made.wall.high < 2 * HOUR, gpu
    assert planned("pilot", tmp_path).gpu == "rtx3090"


def test_sdxl_is_as_much_slower_and_larger_as_is_published(tmp_path):
    full, sdxl = planned("full", tmp_path), planned("full-sdxl", tmp_path)
    ratio = step(sdxl, "generate").busy.low / step(full, "generate").busy.low
    assert ratio == pytest.approx(2180 / 450, rel=0.02)
    assert step(sdxl, "generate").work.disk_bytes == pytest.approx(4 * step(full, "generate").work.disk_bytes)
    assert step(sdxl, "recaption").work.tokens_in > 2 * step(full, "recaption").work.tokens_in


def test_the_demo_plans_the_time_that_it_was_measured_to_take(tmp_path):
    made = planned("demo", tmp_path, "workers=2")
    assert made.wall.low < 493 * 1.1
    assert made.wall.high > 493 * 0.9
    assert {each.origin for each in made.steps} == {MEASURED}
    assert "GPU" in format_plan(made)
    assert made.gpu_seconds.high == 0


def test_a_folder_that_is_there_is_counted(tmp_path):
    both = [f"oops.root={MINI}", f"work={tmp_path}", "frames.splits=[train, val]"]
    profile = load_profile("full", both)
    counts = counts_of(profile, None, load_rates())
    assert 2 < counts.test_clips < 100
    assert 0 < counts.caption_clips < 100
    assert str(MINI) in counts.said_by
    few = load_profile("full", [*both, "frames.clips=2"])
    assert counts_of(few, None, load_rates()).test_clips == 2


def test_what_a_build_kept_comes_before_what_the_paper_kept(tmp_path):
    profile = load_profile("full", [f"work={tmp_path}"])
    store = Store(tmp_path / "full")
    ids = [f"a{n}_goal_000" for n in range(4)] + ["b_full_000"]
    kept = [source("a", "goal").model_copy(update={"id": record_id}) for record_id in ids[:1] + ids[4:]]
    dropped = [Rejection(id=record_id, outcome="rejected", reason="cut_off", detail="") for record_id in ids[1:4]]
    with store.writing("keypoints", "train-000", "key", SourceCaption) as writer:
        writer.begin(1)
        writer.write_part(0, kept, dropped)
        writer.finish({"counts": {"in": 5, "kept": 2}})
    (entry,) = kept_of_build(profile, store)
    assert entry.shares == {"goal": 0.25, "full": 1.0}
    works, _ = workload(profile, "full", load_rates())
    found = next(work for work in works if work.stage == "keypoints")
    counts = load_rates().counts
    train = 75 * (counts["goal"] * 0.25 + counts["wentrong"] * 0.56 + counts["full"])
    assert found.kept == pytest.approx(train + 2 * counts["val_clips"] * 0.9 * 0.6)


def test_an_unknown_gpu_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"--gpu tpu: not in the table"):
        planned("demo", tmp_path, gpu="tpu")


def test_json_holds_the_table(tmp_path, capsys):
    options = ["--profile", "full", "--set", f"work={tmp_path}", "--set", "oops.root=./no-such-folder", "--json"]
    assert plan.main([*options, "--gpus", "4", "--gpu", "a100"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["stage"] for each in told["steps"]] == list(stages.STAGE_NAMES)
    assert (told["gpu"], told["gpus"]) == ("a100", 4)
    assert told["disk_bytes"]["out"] > 10**11
    assert any("no-such-folder" in piece for piece in told["missing"])
    assert plan.main(["--gpus", "0"]) == 2


# --- measuring


def test_the_first_part_of_a_process_holds_the_loading_and_is_not_a_rate():
    first = ShardTimes(1, ((4, 14.0), (4, 4.0), (4, 4.0)))
    second = ShardTimes(1, ((4, 8.0), (4, 8.0)))  # the same process: its engine is loaded
    other = ShardTimes(2, ((4, 24.0), (4, 4.0)))
    assert (timed([first]).low, timed([first]).high, timed([first]).load_s) == (1.0, 1.0, 10.0)
    both = timed([first, second])
    assert (both.low, both.high) == (1.0, 2.0)
    assert timed([first, other]).load_s == 20.0
    assert timed([ShardTimes(1, ((0, 1.0),))]) is None
    assert timed([ShardTimes(1, ((4, 8.0),))]).low == 2.0


def test_the_miniature_has_so_many_items_a_stage_and_takes_nothing_over(tmp_path):
    small = miniature(load_profile("full", [f"oops.root={MINI}"]), 32, tmp_path)
    assert (small.generate.sources, small.generate.images_per_caption, small.frames.clips) == (16, 2, 16)
    assert small.take_from == ()
    assert small.oops.root == MINI
    assert str(small.work).startswith(str(tmp_path))
    assert small.generate.settings == load_profile("full").generate.settings
    demo = miniature(load_profile("demo", [f"work={tmp_path / 'none'}"]), 32, tmp_path)
    assert demo.footage.train_clips < 20


@pytest.mark.parametrize(
    ("name", "key"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA GeForce RTX 3090", "rtx3090"), ("NVIDIA GB10", "nvidia-gb10")],
)
def test_a_gpu_is_found_in_the_table_by_what_its_driver_calls_it(name, key):
    assert timing.gpu_key(name) == key


def test_what_was_measured_is_a_table_that_is_read_and_planned_with(tmp_path):
    speeds = (Speed(stage="frames", seconds=(2, 3), device=CPU, origin=MEASURED),)
    plan.write_rates(tmp_path / "new" / "rates.yaml", Rates(speeds=speeds, batch_sizes={"generate": 24}), "said")
    read = load_rates(tmp_path / "new" / "rates.yaml")
    assert read.speeds == speeds
    made = make_plan(load_profile("demo", [f"work={tmp_path}"]), "demo", read.over(load_rates()), "demo")
    assert step(made, "frames").busy.low == 400
    assert "largest batch that fit when it was measured is 24" in format_plan(made)


def test_a_gpu_that_the_table_lacks_gets_an_entry_of_its_own():
    assert timing._unknown_gpu(Gpu("GPU-1", "NVIDIA GB10", 119.0)).memory_gib == 119.0


def test_measuring_times_every_stage_with_the_profiles_engines(tmp_path):
    shutil.copytree(MINI, tmp_path / "oops")
    profile = load_profile(
        "demo",
        [
            f"oops.root={tmp_path / 'oops'}",
            f"work={tmp_path / 'work'}",
            "generate.settings={size: 96, bad_share: 0.0}",
            "keypoints.backend=blazepose",
            "workers=1",
        ],
    )
    lines: list[str] = []
    found = timing.measure(profile, 8, tmp_path / "measured", lines.append)
    by_stage = {speed.stage: speed for speed in found.speeds}
    assert {"frames", "sources", "generate", "keypoints"} <= set(by_stage)
    assert by_stage["generate"].engine == "simulator"
    assert all(0 <= speed.seconds[0] <= speed.seconds[1] for speed in found.speeds)
    assert all(speed.device == CPU for speed in found.speeds)
    assert not (tmp_path / "work").exists()
