"""The arithmetic of a plan, against numbers that were reckoned by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UserError
from pipeline.core.planning import (
    ESTIMATE,
    MEASURED,
    PUBLISHED,
    SHIPPED,
    Device,
    Kept,
    Rates,
    Size,
    Span,
    Speed,
    Work,
    disk_of,
    keep_share,
    load_rates,
    plan_steps,
    size_of,
    speed_of,
    total,
    worst,
)

DEVICES = {
    "a100": Device(memory_gib=80, speed=1, origin=PUBLISHED),
    "h100": Device(memory_gib=80, speed=2, origin=ESTIMATE),
}


def draw(**changes) -> Work:
    given = {"stage": "generate", "items": 100, "kept": 100, "shards": 4, "engine": "diffusers", "on_gpu": True}
    return Work(**{**given, **changes})


def speed(**changes) -> Speed:
    given = {"stage": "generate", "engine": "diffusers", "device": "a100", "seconds": (1, 2), "origin": PUBLISHED}
    return Speed(**{**given, **changes})


def rates(*speeds: Speed) -> Rates:
    return Rates(devices=DEVICES, speeds=speeds)


def test_a_stage_takes_items_times_seconds_and_its_shards_share_the_gpus():
    (step,) = plan_steps([draw()], rates(speed(load_s=10)), "a100", 2, 1)
    assert step.busy == Span(120, 220)  # 100 or 200 s, and two GPUs that load for 10 s
    assert step.wall == Span(60, 110)
    assert (step.device, step.origin) == ("a100", PUBLISHED)


def test_shards_are_dealt_out_whole():
    (step,) = plan_steps([draw(shards=5)], rates(speed()), "a100", 4, 1)
    assert step.wall == Span(40, 80)  # two rounds of a fifth each
    (step,) = plan_steps([draw(shards=5)], rates(speed(load_s=1)), "a100", 100, 1)
    assert step.wall == Span(21, 41)
    assert step.busy == Span(105, 205)  # only five GPUs have anything to load for


def test_what_is_taken_over_takes_no_time():
    (step,) = plan_steps([draw(taken_over=100)], rates(speed(load_s=10)), "a100", 2, 1)
    assert step.busy == step.wall == Span(0, 0)
    (step,) = plan_steps([draw(taken_over=60)], rates(speed()), "a100", 1, 1)
    assert step.busy == Span(40, 80)


def test_another_gpu_is_scaled_by_both_speeds_and_is_an_estimate():
    seconds, _, origin = speed_of(rates(speed()), draw(), "h100")
    assert (seconds, origin) == (Span(0.5, 1), ESTIMATE)
    seconds, _, _ = speed_of(rates(speed(device="h100")), draw(), "a100")
    assert seconds == Span(2, 4)


def test_a_figure_for_the_gpu_itself_comes_before_one_that_is_scaled():
    seconds, _, origin = speed_of(rates(speed(), speed(device="h100", seconds=(7, 7))), draw(), "h100")
    assert (seconds, origin) == (Span(7, 7), PUBLISHED)


def test_steps_and_the_area_of_an_image_count():
    of_steps = rates(speed(per="step", pixels=256 * 256))
    assert speed_of(of_steps, draw(steps=25, pixels=256 * 256), "a100")[::2] == (Span(25, 50), PUBLISHED)
    assert speed_of(of_steps, draw(steps=25, pixels=512 * 512), "a100")[::2] == (Span(100, 200), ESTIMATE)


def test_the_entry_whose_settings_say_most_stands_and_one_of_other_settings_does_not():
    table = rates(
        speed(seconds=(1, 1)),
        speed(settings={"preset": "x"}, seconds=(2, 2)),
        speed(settings={"preset": "x", "size": 64}, seconds=(3, 3)),
        speed(settings={"preset": "y"}, seconds=(4, 4)),
    )
    assert speed_of(table, draw(settings={"preset": "x", "size": 32}), "a100")[0] == Span(2, 2)
    assert speed_of(table, draw(settings={"preset": "x", "size": 64}), "a100")[0] == Span(3, 3)
    assert speed_of(table, draw(settings={"preset": "z"}), "a100")[0] == Span(1, 1)


def test_a_cpus_figure_is_none_for_a_gpu_nor_the_other_way_round():
    on_cpu = draw(on_gpu=False)
    assert speed_of(rates(speed()), on_cpu, "cpu") is None
    assert speed_of(rates(speed(device="cpu")), draw(), "a100") is None
    (step,) = plan_steps([on_cpu], rates(speed(device="cpu")), "a100", 8, 2)
    assert step.wall == Span(50, 100)  # two workers, whatever the GPUs


def test_without_a_rate_time_is_unknown_and_left_out_of_the_sum():
    known, unknown = plan_steps([draw(), draw(stage="frames", engine=None)], rates(speed()), "a100", 1, 1)
    assert unknown.busy is unknown.wall is None
    assert unknown.origin == ESTIMATE
    assert total(step.wall for step in (known, unknown)) == known.wall


def test_a_gpu_that_the_table_lacks_is_named_with_those_it_has():
    with pytest.raises(UserError, match=r"--gpu tpu: not in the table of rates, which has a100, h100"):
        plan_steps([draw()], rates(speed()), "tpu", 1, 1)


def test_a_persons_rates_come_before_the_tables():
    own = Rates(
        speeds=(speed(seconds=(9, 9), origin=MEASURED),),
        kept=(Kept(stage="keypoints", shares={"goal": 0.5}, origin=MEASURED),),
        counts={"goal": 3},
    )
    both = own.over(
        Rates(
            devices=DEVICES,
            speeds=(speed(),),
            kept=(Kept(stage="keypoints", shares={"goal": 0.75, "full": 0.7}, origin=PUBLISHED),),
            counts={"goal": 1, "full": 2},
        )
    )
    assert speed_of(both, draw(), "a100")[::2] == (Span(9, 9), MEASURED)
    assert keep_share(both, "keypoints", "goal") == (0.5, MEASURED)
    assert keep_share(both, "keypoints", "full") == (0.7, PUBLISHED)
    assert both.counts == {"goal": 3, "full": 2}


def test_shares_and_sizes_of_one_engine_are_not_anothers():
    table = Rates(
        kept=(Kept(stage="k", engine="blazepose", shares={"all": 0.9}, origin=MEASURED),),
        sizes=(Size(stage="g", engine="simulator", pixel=2, record=10, origin=MEASURED),),
    )
    assert keep_share(table, "k", "goal", "blazepose") == (0.9, MEASURED)
    assert keep_share(table, "k", "goal", "mmpose")[0] == 1.0
    assert size_of(table, "g", 5, "simulator") == (20, MEASURED)
    assert size_of(table, "g", 5, "diffusers") == (0.0, ESTIMATE)


def test_a_figure_is_no_better_than_the_worst_it_is_made_from():
    assert worst([MEASURED, PUBLISHED]) == PUBLISHED
    assert worst([ESTIMATE, MEASURED]) == ESTIMATE
    assert worst([]) == MEASURED
    (step,) = plan_steps([draw(origins=(ESTIMATE,))], rates(speed()), "a100", 1, 1)
    assert step.origin == ESTIMATE


def test_disk_is_added_up_by_place():
    works = [draw(disk_bytes=1), draw(disk_bytes=2), draw(disk_bytes=4, place="out")]
    assert disk_of(plan_steps(works, rates(), "a100", 1, 1)) == {"work": 3, "out": 4}


@given(st.integers(0, 10**6), st.integers(1, 100), st.integers(1, 64), st.floats(0, 100), st.floats(0, 100))
def test_more_gpus_are_never_slower_and_never_faster_than_their_number(items, shards, gpus, low, more):
    table = rates(speed(seconds=(low, low + more)))
    (one,) = plan_steps([draw(items=items, shards=shards)], table, "a100", 1, 1)
    (many,) = plan_steps([draw(items=items, shards=shards)], table, "a100", gpus, 1)
    assert many.busy == one.busy
    assert many.wall.high <= one.wall.high * (1 + 1e-9)
    assert many.wall.high >= one.wall.high / gpus * (1 - 1e-9)
    assert math.isclose(one.wall.high, one.busy.high, abs_tol=1e-9)


# --- the table that ships


def test_every_figure_of_the_shipped_table_says_where_it_is_from_and_the_published_ones_add_up():
    table = load_rates()
    assert all(entry.origin in (MEASURED, PUBLISHED, ESTIMATE) for entry in (*table.speeds, *table.kept, *table.sizes))
    images = 75 * (table.counts["goal"] + table.counts["wentrong"] + table.counts["full"])
    assert images == 1_529_025
    sd = draw(items=images, settings={"preset": "realistic-vision-v4"}, steps=50, pixels=512 * 512, shards=75)
    xl = draw(items=images, settings={"preset": "realvisxl-v4"}, steps=50, pixels=1024 * 1024, shards=75)
    first, second = (step.busy * (1 / 3600) for step in plan_steps([sd, xl], table, "a100", 1, 1))
    assert (first.low, first.high) == (pytest.approx(450, rel=0.01), pytest.approx(680, rel=0.01))
    assert (second.low, second.high) == (pytest.approx(2180, rel=0.01), pytest.approx(2520, rel=0.01))
    shares = {kind: keep_share(table, "keypoints", kind, "mmpose") for kind in ("goal", "wentrong", "full")}
    assert all(origin == PUBLISHED for _, origin in shares.values())
    kept = 75 * sum(table.counts[kind] * share for kind, (share, _) in shares.items())
    assert kept == pytest.approx(1_013_605, rel=0.015)
    test = 2 * table.counts["val_clips"]
    for stage in ("frames", "keypoints", "similarity", "review"):
        test *= keep_share(table, stage, "test", "mmpose")[0]
    assert test == pytest.approx(1978, rel=0.01)


def test_every_line_of_the_table_that_holds_a_guess_is_marked():
    said = {"devices": 0, "speeds": 0, "kept": 0, "sizes": 0}
    data = yaml.safe_load(SHIPPED.read_text("utf-8"))
    for name in said:
        entries = data[name].values() if isinstance(data[name], dict) else data[name]
        said[name] = sum(entry["origin"] == ESTIMATE for entry in entries)
    assert all(said.values()), said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speeds: [{stage: x}]", "'speeds.0."),
        ("speeds: [{stage: x, seconds: [1, -1], origin: measured}]", "greater than or equal to 0"),
        ("speeds: [{stage: x, seconds: [1, 1], origin: guessed}]", "'speeds.0.origin'"),
        ("colour: red", "'colour'"),
        ("a: [", "is not YAML"),
        ("- 1", "--rates"),
    ],
)
def test_a_table_that_is_wrong_is_one_clear_line(tmp_path, text, said):
    path = tmp_path / "rates.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_rates(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        load_rates(Path(tmp_path / "none.yaml"))
