"""The command line under the protocols that are not PAB's own: one tiny training, then weights put to other tests."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline import import_pab, train_eval
from pipeline.core.weather import CONDITIONS
from pipeline.evaluate_weights import figures as figures_of
from tests.synthetic_build import publish_build, write_build

SIZE = (
    "model.size={name: test, image: {image_size: 32, patch_size: 4, embed_dim: 8, depths: [1, 1], heads: [1, 2], "
    "window: 4}, text: {width: 24, heads: 2, ffn_width: 48, text_layers: 1, cross_layers: 1}, pose_heads: 2, "
    "feature_width: 32, max_tokens: 16}"
)
TINY = ("--preset", "small", "--init", "none", "--set", SIZE, "--batch-size", "4", "--threads", "1", "--epochs", "1")
COLOURS = ((200, 20, 20), (20, 180, 20), (20, 20, 220), (240, 240, 240), (40, 40, 40), (200, 200, 20))
NAMES = ("red", "green", "blue", "white", "black", "yellow")
LONG = " ".join(["with a long coat"] * 20)


def write_picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 30, 3), COLOURS[number % 6], np.uint8)).save(path)


@pytest.fixture(scope="module")
def cuhk(tmp_path_factory) -> Path:
    """Eight persons to train on and three to test on, with holes in their ids; two pictures each, two captions each."""
    root = tmp_path_factory.mktemp("CUHK-PEDES")
    rows = []
    for split, persons in (("train", 8), ("test", 3)):
        for person in range(persons):
            for view in (0, 1):
                name = f"{split}/{person}_{view}.png"
                write_picture(root / "imgs" / name, person)
                captions = [f"a person in {NAMES[person % 6]} number {person}", f"{NAMES[person % 6]} {LONG}"]
                rows.append({"split": split, "captions": captions, "file_path": name, "id": 3 * person + 1})
    (root / "reid_raw.json").write_text(json.dumps(rows))
    return root


@pytest.fixture(scope="module")
def track4(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("track4")
    for number in range(12):
        write_picture(root / "gallery" / f"{number:05d}.jpg", number)
    lines = [{"query_index": number, "caption": f"a person in {NAMES[number]}", "other": 1} for number in range(4)]
    (root / "query_text.json").write_text("\n".join(map(json.dumps, lines)))
    (root / "query_index.txt").write_text("2\n0\n3\n1\n")
    (root.parent / "truth.txt").write_text("".join(f"{number} {number:05d}.jpg\n" for number in range(4)))
    return root


@pytest.fixture(scope="module")
def run_of(cuhk, tmp_path_factory) -> Path:
    """A run on the persons, of a model without pose encoding."""
    folder = tmp_path_factory.mktemp("run") / "m1"
    data = f"tipr:CUHK-PEDES:{cuhk}"
    assert train_eval.main(["--model", "m1", "--data", data, *TINY, "--validation", "0", "--out", str(folder)]) == 0
    return folder


def evaluated(run: Path, out: Path, data: str, *more: str) -> dict:
    arguments = ["--evaluate", "--checkpoint", str(run / "last"), "--data", data, "--out", str(out), *more]
    assert train_eval.main(arguments) == 0
    return json.loads((out / "metrics.json").read_text())


def test_a_model_is_trained_on_persons_and_judged_by_the_sets_own_protocol(run_of):
    found = json.loads((run_of / "evaluation" / "last" / "metrics.json").read_text())
    assert list(found["protocols"]) == ["CUHK-PEDES"]
    assert (found["gallery"], found["queries"], found["training pairs"]) == (6, 12, 32)
    figures = found["protocols"]["CUHK-PEDES"]
    assert figures["Avg"] == pytest.approx((figures["R@1"] + figures["R@5"] + figures["R@10"]) / 3, abs=1e-3)
    assert figures["R@5"] == 100  # two of six pictures are right, so that five cannot miss both
    assert found["captions cut"] == 6


def test_captions_that_are_cut_and_the_size_of_training_are_said(run_of, cuhk, tmp_path, capsys):
    evaluated(run_of, tmp_path, f"tipr:cuhk-pedes:{cuhk}")
    said = capsys.readouterr().out
    assert "6 of 12 captions of the test split are longer than 16 tokens and are cut there" in said
    assert "CUHK-PEDES: test split of" in said
    assert "trained on 32 pairs" in said


def test_a_model_that_reads_pose_maps_is_refused_where_there_are_none(cuhk, tmp_path, capsys):
    arguments = ["--model", "cmp", "--data", f"tipr:CUHK-PEDES:{cuhk}", *TINY, "--out", str(tmp_path / "run")]
    assert train_eval.main(arguments) == 2
    assert "has no pose maps" in (said := capsys.readouterr().err)
    assert "--set model.pose=false" in said


def test_track_4_gives_an_answer_and_with_ground_truth_also_map(run_of, track4, tmp_path):
    blind = evaluated(run_of, tmp_path / "blind", f"track4:{track4}")
    assert blind["protocols"] == {}
    answer = (tmp_path / "blind" / "answer.txt").read_text()
    assert [len(line.split()) for line in answer.splitlines()] == [10] * 4
    truth = str(track4.parent / "truth.txt")
    told = evaluated(run_of, tmp_path / "told", f"track4:{track4}", "--ground-truth", truth)
    assert (tmp_path / "told" / "answer.txt").read_text() == answer
    assert list(told["protocols"]) == ["AI City Track 4"]
    assert told["protocols"]["AI City Track 4"]["queries"] == 4


def test_every_protocol_of_a_dataset_has_a_folder_and_a_table_of_its_own(run_of, track4, tmp_path, capsys):
    publish_build(*write_build(tmp_path))
    data = str(tmp_path / "out" / "pab")
    plain = evaluated(run_of, tmp_path / "plain", data, "--protocol", "pab,multi-weather")
    weather = json.loads((tmp_path / "plain" / "multi-weather" / "metrics.json").read_text())
    assert "Multi-Weather" not in plain["protocols"]
    assert list(weather["protocols"]) == ["Multi-Weather"]
    assert weather["conditions"]["normal"]["R@1"] == plain["protocols"]["PAB behaviour"]["R@1"]
    assert weather["protocols"]["Multi-Weather"]["mAP"] == pytest.approx(weather["conditions"]["mean"]["mAP"], abs=1e-3)
    said = capsys.readouterr().out
    assert said.index("PAB behaviour") < said.index("Multi-Weather: test split") < said.index("drawn here")

    crowded = evaluated(run_of, tmp_path / "crowded", data, "--distractors", f"track4:{track4}")
    assert (crowded["gallery"], crowded["queries"]) == (plain["gallery"] + 12, plain["queries"])
    for name, figures in plain["protocols"].items():  # the identity protocol is still there, and none is better
        assert crowded["protocols"][name]["mAP"] <= figures["mAP"]
    assert f"with distractors from track4:{track4}" in capsys.readouterr().out


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize("imported", [False, True])
def test_ucc_and_weather_of_a_released_folder_are_judged_on_its_own_pictures(run_of, tmp_path, capsys, imported):
    folder = tmp_path / "pab"
    rows = [{"image": f"test/{n}.jpg", "image_id": n, "caption": [f"a person in {NAMES[n]}"]} for n in range(6)]
    ucc = [{**row, "image": f"ucc/{n}.jpg", "image_id": n // 2} for n, row in enumerate(rows)]
    snow = [{**row, "image": f"multi-weather/snow/{n}.jpg"} for n, row in enumerate(rows)][:4]
    write_rows(folder / "annotation/test/attr.json", rows)
    write_rows(folder / "annotation/test/ucc.json", ucc)
    write_rows(folder / "annotation/multi-weather/multi-weather_snow.json", snow)
    for number, row in enumerate([*rows, *ucc, *snow]):
        write_picture(folder / row["image"], number % 6)
    Image.new("RGB", (24, 30)).save(folder / "test/5.jpg")  # too small for a flake: left out where weather is drawn
    data = f"pab:{folder}"
    if imported:
        data = str(tmp_path / "out")
        assert import_pab.main([str(folder), "--out", data]) == 0
    found = evaluated(run_of, tmp_path / "told", data, "--protocol", "ucc,multi-weather")
    assert list(found["protocols"]) == ["UCC"]
    assert (found["gallery"], found["queries"]) == (6, 6)
    # Each span has two pictures, one of which may come first for a caption and the other last.
    assert found["protocols"]["UCC"]["R@5"] == 100
    assert found["protocols"]["UCC"]["mINP"] < found["protocols"]["UCC"]["mAP"]
    weather = json.loads((tmp_path / "told" / "multi-weather" / "metrics.json").read_text())
    assert {name: each["queries"] for name, each in weather["conditions"].items() if name != "mean"} == {
        condition: {"snow": 4, "normal": 6}.get(condition, 5) for condition in CONDITIONS
    }
    assert [each for each in weather["unreadable"] if each.startswith("rain: ") and "24" in each]
    assert "the others are those of the data" in capsys.readouterr().out


def test_a_runs_figures_have_a_table_for_each_protocol(tmp_path):
    figures = {"R@1": 1.0, "R@5": 2.0, "R@10": 3.0, "mAP": 4.0, "mINP": 5.0, "queries": 6}
    content = {"gallery": 6, "fusion": "single", "pair accuracy": {"queries": 0}}
    for place, name in ((".", "PAB behaviour"), ("ucc", "UCC")):
        folder = tmp_path / "evaluation" / "last" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text(json.dumps({**content, "protocols": {name: figures}}))
    tables = figures_of(tmp_path).split("\n\n")
    assert [name in table for table, name in zip(tables, ("| PAB behaviour |", "| UCC |"), strict=False)] == [True] * 2
    assert "UCC" not in tables[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--evaluate", "--checkpoint", "x", "--protocol", "ucc", "--data", "track4:{track4}"), "is judged by track4"),
        (("--evaluate", "--checkpoint", "x", "--data", "tipr:Market:{track4}"), "there is no such set"),
        (("--evaluate", "--checkpoint", "x", "--data", "tipr:RSTPReid:{track4}"), "data_captions.json is not there"),
        (
            ("--evaluate", "--checkpoint", "x", "--data", "tipr:CUHK-PEDES:{cuhk}", "--ground-truth", "y"),
            "only AI City Track 4",
        ),
        (("--data", "track4:{track4}", "--ground-truth", "y"), "go with --evaluate"),
        (("--data", "track4:{track4}"), "nothing to train on"),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments, said, cuhk, track4, tmp_path, capsys):
    given = [each.format(cuhk=cuhk, track4=track4) for each in arguments]
    assert train_eval.main([*given, *([] if "--evaluate" in given else TINY), "--out", str(tmp_path / "o")]) == 2
    assert said in capsys.readouterr().err
