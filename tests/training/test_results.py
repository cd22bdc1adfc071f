import io
import json

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from pipeline.retrieval.metrics import Metrics, PairAccuracy
from pipeline.training.evaluate import Evaluation, Query, Ranking
from pipeline.training.results import (
    CURVES,
    METRICS,
    PAGE,
    RANKINGS,
    curves_figure,
    examples_page,
    format_metrics,
    write_curves,
    write_results,
)
from tests.training.tiny_run import sample_set


def evaluation(count: int = 6) -> Evaluation:
    data = sample_set(count)
    rankings = tuple(
        Ranking(Query(each.id, each.caption, n), tuple((n + k) % count for k in range(5)), (5.0, 4.0, 3.0, 2.0, 1.0))
        for n, each in enumerate(data.samples)
    )
    figures = Metrics({1: 50.0, 5: 75.0, 10: 100.0}, 61.25, 55.5, count, 1)
    return Evaluation(
        gallery=data.samples,
        metrics={"PAB behaviour": figures},
        pairs=PairAccuracy(4, 6),
        rankings=rankings,
        fusion="single",
        top_k=5,
        unreadable=(("s9", "cut off"),),
        counts={"queries": count, "gallery": count, "left out": 1},
    )


def test_figures_rankings_and_examples_are_written(tmp_path):
    paths = write_results(tmp_path, evaluation(), sample_set(6), {"model": "cmp"})
    assert [path.name for path in paths] == [METRICS, RANKINGS, PAGE]
    found = json.loads((tmp_path / METRICS).read_text())
    assert found["model"] == "cmp"
    assert found["protocols"]["PAB behaviour"]["R@1"] == 50.0
    assert found["pair accuracy"]["95 % interval"][0] < 66.67 < found["pair accuracy"]["95 % interval"][1]
    assert found["unreadable"] == ["s9: cut off"]
    rows = pq.read_table(tmp_path / RANKINGS).to_pylist()
    assert len(rows) == 30
    assert rows[6] == {"query": "s001", "rank": 2, "id": "s002", "score": 4.0}


def test_the_same_results_are_the_same_bytes(tmp_path):
    first = [path.read_bytes() for path in write_results(tmp_path / "a", evaluation(), sample_set(6), {})]
    assert first == [path.read_bytes() for path in write_results(tmp_path / "b", evaluation(), sample_set(6), {})]


def test_frames_are_green_for_right_blue_for_the_same_person_and_red_for_wrong():
    page = np.asarray(examples_page(evaluation(), sample_set(6)))
    colours = {tuple(int(part) for part in pixel) for pixel in page.reshape(-1, 3)[::7]}
    assert {(40, 160, 60), (50, 90, 210), (200, 50, 50)} <= colours


def test_the_table_says_protocol_figures_chance_and_what_was_left_out():
    text = format_metrics(evaluation())
    assert "PAB behaviour  50.00  75.00  100.00  61.25  55.50        6" in text
    assert "pair accuracy 66.7 %" in text
    assert "chance R@1 16.67 %" in text
    assert "left out: 1 images, 1 queries" in text


def test_curves_are_drawn_for_a_log_and_not_for_none(tmp_path):
    assert write_curves(tmp_path, []) is None
    log = [{"epoch": n, "loss_itc": 3.0 - n, "validation_R@1": 10.0 * n} for n in range(3)]
    path = write_curves(tmp_path, log)
    assert path == tmp_path / CURVES
    assert Image.open(io.BytesIO(path.read_bytes())).size[0] > 600
    assert write_curves(tmp_path, [{"epoch": 0, "loss_itc": float("1")}]) is not None


def test_curves_of_one_log_are_the_same_bytes(tmp_path):
    log = [{"epoch": n, "loss_itc": 3.0 - n} for n in range(3)]
    (tmp_path / "b").mkdir()
    assert write_curves(tmp_path, log).read_bytes() == write_curves(tmp_path / "b", log).read_bytes()


def test_an_epoch_is_a_whole_number_on_the_axis_however_few_there_are():
    for epochs in (1, 2, 3, 30):
        figure = curves_figure([{"epoch": n, "loss_itc": 3.0 - n} for n in range(epochs)])
        for axes in figure.axes:
            assert all(float(tick).is_integer() for tick in axes.get_xticks())
