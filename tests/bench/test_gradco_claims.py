from __future__ import annotations

import json

import pytest

from bench import gradco_claims as claims
from bench.gradco_claims import HELD, NOT_HELD, NOT_TESTABLE, NOT_YET, SPREAD, Part

SEEDS = (42, 43, 44)


def by_seed(*values: float) -> dict[int, float]:
    return dict(zip(SEEDS, values, strict=False))


def figures(**rows: dict[str, tuple[float, ...]]) -> dict[str, dict[int, dict[str, float]]]:
    """Row (`_` for `-`) -> figure -> a value a seed."""
    return {
        row.replace("_", "-"): {seed: {name: own[n] for name, own in named.items()} for n, seed in enumerate(SEEDS)}
        for row, named in rows.items()
    }


@pytest.mark.parametrize(
    ("larger", "smaller", "verdict"),
    [
        ((50, 51, 52), (40, 41, 42), HELD),
        ((40, 41, 42), (50, 51, 52), NOT_HELD),
        ((50, 51, 52), (49.5, 50.5, 51.5), SPREAD),  # the same sign, smaller than the spread
        ((50, 60, 70), (40, 61, 40), SPREAD),  # large, but one seed says otherwise
        ((50, 50, 50), (50, 50, 50), SPREAD),
    ],
)
def test_a_difference_holds_with_one_sign_and_beyond_the_seeds_spread(larger, smaller, verdict):
    assert claims.above("x", by_seed(*larger), by_seed(*smaller), SEEDS).verdict == verdict


def test_a_seed_that_is_missing_is_not_measured_yet_and_one_seed_decides_nothing():
    part = claims.above("x", by_seed(1, 2), by_seed(0, 0, 0), SEEDS)
    assert (part.verdict, part.here) == (NOT_YET, "2 of 3 seeds")
    assert claims.above("x", by_seed(9), by_seed(1), SEEDS[:1]).verdict == SPREAD


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((HELD, HELD), HELD),
        ((HELD, NOT_TESTABLE), HELD),
        ((HELD, SPREAD), NOT_HELD),
        ((NOT_HELD, NOT_YET), NOT_YET),
        ((NOT_TESTABLE, NOT_TESTABLE), NOT_TESTABLE),
    ],
)
def test_a_claim_holds_where_every_testable_part_does(verdicts, expected):
    assert claims.verdict_of_parts([Part("x", each, "") for each in verdicts]) == expected


def test_without_footage_of_ucf_crime_the_second_claim_is_not_testable():
    found = figures(gradco={"PAB-Avg": (60, 61, 62)}, gradco_no_anchors={"PAB-Avg": (50, 51, 52)})
    ((_, verdict, parts),) = claims.judged(found, SEEDS, (2,))
    assert verdict == NOT_TESTABLE
    assert {each.here for each in parts} == {"needs UCF-Crime"}


def test_the_first_claim_holds_where_each_stream_matters_and_not_where_one_does_not():
    lower = {"PAB-Avg": (50, 51, 52), "Weather-Avg": (30, 31, 32)}
    rows = {f"gradco_D{n}": lower for n in range(1, 7)}
    full = {"PAB-Avg": (60, 61, 62), "Weather-Avg": (40, 41, 42)}
    ((_, verdict, parts),) = claims.judged(figures(gradco=full, **rows), SEEDS, (1,))
    assert verdict == HELD
    assert sum(each.verdict == NOT_TESTABLE for each in parts) == 3
    rows["gradco_D2"] = {"PAB-Avg": (59, 62, 61), "Weather-Avg": (30, 31, 32)}
    ((_, verdict, parts),) = claims.judged(figures(gradco=full, **rows), SEEDS, (1,))
    assert verdict == NOT_HELD
    assert [each.what for each in parts if each.verdict == SPREAD] == ["D2 lowers PAB-Avg"]


def test_a_collapse_is_a_fall_below_half():
    others = {f"gradco_no_{n}": {"PAB-Avg": (50, 51, 52), "Weather-Avg": (30, 31, 32)}
              for n in ("similarity", "matching", "intent", "feature")}  # fmt: skip
    full = {"PAB-Avg": (60, 61, 62), "Weather-Avg": (40, 41, 42)}
    for value, expected in ((5, HELD), (35, NOT_HELD)):
        found = figures(gradco=full, gradco_no_contrast={"PAB-Avg": (value, value, value)}, **others)
        assert claims.judged(found, SEEDS, (3,))[0][1] == expected


@pytest.mark.parametrize(
    ("heights", "verdict"), [((1, 2, 5, 3, 2), HELD), ((1, 2, 5, 6, 2), NOT_HELD), ((3, 2, 5, 3, 2), NOT_HELD)]
)
def test_figures_rise_then_fall_around_the_best_value_alone(heights, verdict):
    by_value = {value: by_seed(h, h, h) for value, h in zip((1, 2, 4, 6, 8), heights, strict=True)}
    assert claims.rises_then_falls("K", by_value, 4, SEEDS).verdict == verdict


def test_figures_of_the_inside_are_found_in_the_sections():
    epochs = [{"positive": {"appearance": {"norm": value}}} for value in (0.0, 1.0, 2.0)]
    sections = {
        "anchors": {"epochs": epochs, "positive": {"appearance": {"norm": 7.5, "cosine": None}}},
        "hard_negatives": {"images": {"within": 0.9, "across": 0.4, "gap": 0.5}},
        "weights": {
            "streams": ["appearance", "normal", "anomalous"],
            "by kind": {"normal": [{"mean": 0.2}, {"mean": 0.5}, {"mean": 0.3}]},
            "edits": {"action masked": {"all": {"moved": [0.9, 0.1, 0.3]}}},
        },
    }
    found = claims.inner_figures(sections)
    assert found["anchor length appearance"] == 7.5
    assert (found["anchor length appearance, first epoch"], found["anchor length appearance, last epoch"]) == (1, 2)
    assert "anchor cosine appearance" not in found
    assert found["weight normal, normal"] == 0.5
    assert found["behaviour weights moved, action masked"] == pytest.approx(0.2)
    assert found["similarity gap"] == 0.5


def test_parameters_are_counted_as_published():
    assert claims.counted_parameters("cmp") == 226_128_572
    assert claims.counted_parameters("gradco") == pytest.approx(247_360_000, rel=0.01)


def test_rows_are_shared_between_claims_and_every_one_can_be_planned(tmp_path):
    from pipeline.compare import plan_runs

    rows = claims.rows_for(range(1, 10))
    assert len({row.name for row in rows}) == len(rows) == 23
    runs = plan_runs(rows, (42,), tmp_path, ["--preset", "small"])
    baseline = next(run for run in runs if run.row.name == "x2vlm").settings["recipe"]["model"]
    assert not baseline["col"]["anchors"]
    assert not baseline["bmoe"]["image_experts"]
    assert [row.name for row in claims.rows_for((5,))] == ["gradco"]


def test_a_dry_run_says_how_many_runs_and_writes_nothing(tmp_path, capsys):
    code = claims.main(["--dry-run", "--only", "8", "--seeds", "42,43", "--runs", str(tmp_path / "runs")])
    assert code == 0
    told = capsys.readouterr().out
    assert "4 runs, 0 of them done" in told
    assert "x2vlm: seeds 42, 43" in told
    assert not (tmp_path / "runs").exists()


def test_claims_that_are_not_measured_say_so_in_both_files(tmp_path, capsys):
    assert claims.main(["--no-training", "--runs", str(tmp_path), "--only", "4,5"]) == 0
    assert "**not measured yet**" in (tmp_path / "claims.md").read_text()
    told = json.loads((tmp_path / "claims.json").read_text())
    assert [each["verdict"] for each in told["claims"]] == [NOT_YET, NOT_YET]


def test_an_unknown_claim_is_told(capsys):
    assert claims.main(["--only", "12"]) == 2
    assert "numbers from 1 to 9" in capsys.readouterr().err


def test_a_picture_is_rendered_once_for_all_networks(monkeypatch):
    from types import SimpleNamespace

    import numpy as np

    from pipeline.core.images import encode_png, read_image
    from pipeline.training import protocol_runs
    from pipeline.training.samples import SampleSet

    made = []

    def rendered(picture, condition, name):
        made.append((condition, name))
        return picture + 1

    monkeypatch.setattr(protocol_runs, "weathered", rendered)
    plain = encode_png(np.full((30, 30, 3), 7, np.uint8))
    test = SampleSet("d", "test", (SimpleNamespace(image=3, id="s3"),), lambda *_: plain)
    images = claims.Weathered(test)
    for _ in range(2):
        assert (read_image(images.under("rain").read(3, "image"), "s3") == 8).all()
    assert images.under("snow").read(3, "pose") == plain
    assert made == [("rain", "s3")]


def test_a_row_a_claim_has_what_decides_each_of_its_parts():
    claim = claims.CLAIMS[1]
    parts = [
        Part("a", HELD, "2.00 against 1.00", "+1.00"),
        Part("b", SPREAD, "1.00 against 1.10", "-0.10"),
        Part("c", NOT_TESTABLE, claims.NO_UCC),
        Part("d", NOT_YET, "1 of 3 seeds"),
    ]
    text = claims.markdown([(claim, NOT_HELD, parts)], ["a note"])
    row = next(line for line in text.splitlines() if line.startswith("| 2 | Anchors"))
    assert row.endswith(
        "| a: yes, +1.00; b: no, within the spread, -0.10; d: not measured yet; "
        "1 of UCC-Avg not testable (needs UCF-Crime) | **not held** |"
    )
    assert "| 2 | a | held | 2.00 against 1.00 |" in text
    assert text.endswith("* a note\n")
