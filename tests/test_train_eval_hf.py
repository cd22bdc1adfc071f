"""Other people's dual encoders through the command, as a person runs it: tiny ones with random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_dual import MAX_TOKENS, saved
from tests.synthetic_build import publish_build, write_build

KINDS = ("clip", "siglip")
FINETUNED = ("--finetune", "--preset", "small", "--batch-size", 4, "--threads", 1, "--set", "optimiser.lr=1e-3")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A published dataset: 18 training images of three videos, 8 test images of four."""
    root = tmp_path_factory.mktemp("train_eval_hf")
    publish_build(*write_build(root))
    return root / "out" / "pab"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        saved(root / kind, kind)
    return root


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(True)


def run(*arguments: object) -> int:
    from accelerate.state import AcceleratorState

    from pipeline.train_eval import main

    AcceleratorState._reset_state(True)
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


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def finetuned(data, models, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finetuned") / "siglip"
    assert run("--model", f"hf:{models / 'siglip'}", "--data", data, *FINETUNED, "--epochs", 2, "--out", folder) == 0
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_evaluated_as_it_is_by_similarity_alone_and_nothing_is_trained(data, models, tmp_path, capsys, kind):
    import numpy as np
    import pyarrow.parquet as pq

    from pipeline.core.images import read_image
    from pipeline.models.config import DualOptions
    from pipeline.models.dual import load_dual
    from pipeline.training.samples import load_samples

    given = ("--model", f"hf:{models / kind}", "--data", data, "--threads", 1, "--out", tmp_path)
    assert run(*given) == 0
    said = capsys.readouterr().out
    assert f"{kind} of transformers, zero-shot" in said
    assert "nothing matched, fusion similarity" in said
    assert f"8 of 8 captions of the test split are longer than {MAX_TOKENS} tokens and are cut there" in said
    results = tmp_path / "evaluation" / "last"
    found = metrics_of(results)
    assert (found["fusion"], found["candidates"], found["gallery"], found["captions cut"]) == ("similarity", 0, 8, 8)
    assert set(found["protocols"]) == {"PAB behaviour", "PAB identity", "PAB-Normal", "PAB-Anomaly"}
    assert found["pair accuracy"]["queries"] == 8
    assert not (tmp_path / "last").exists()
    assert not (tmp_path / "log.jsonl").exists()

    network = load_dual(DualOptions(weights=str(models / kind)))
    test = load_samples(str(data), "test")
    pictures = np.stack([network.pictures(read_image(test.picture(s.image, "image"), s.id)) for s in test.samples])
    similarity = _similarity(network, pictures, [sample.caption for sample in test.samples])
    places = {sample.id: number for number, sample in enumerate(test.samples)}
    rows = pq.read_table(results / "rankings.parquet").to_pylist()
    assert len(rows) == 64
    for row in rows:
        assert row["score"] == pytest.approx(similarity[places[row["query"]], places[row["id"]]], abs=1e-5)


def _similarity(network: Any, pictures: Any, captions: list[str]) -> Any:
    """Of captions down and pictures across, by calling transformers."""
    import torch

    given = network._tokenizer(
        captions, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        found = network.model(pixel_values=torch.from_numpy(pictures), **given)
    return (found.text_embeds @ found.image_embeds.T).numpy()


def test_a_test_set_alone_is_enough_for_a_model_as_it_is(data, models, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    for path in (tmp_path / "data" / "data").glob("train-*"):
        path.unlink()
    given = ("--model", f"hf:{models / 'clip'}", "--data", tmp_path / "data", "--threads", 1, "--out", tmp_path / "run")
    assert run(*given) == 0
    assert metrics_of(tmp_path / "run" / "evaluation" / "last")["gallery"] == 8


def test_fine_tuning_trains_validates_and_leaves_weights_that_transformers_reads(finetuned, models):
    import torch
    from transformers import AutoModel

    log = [json.loads(line) for line in (finetuned / "log.jsonl").read_text("utf-8").splitlines()]
    assert [line["batches"] for line in log] == [3, 3]
    assert 0 < log[1]["loss"] < log[0]["loss"]
    assert "validation_R@1" in log[0]
    assert (finetuned / "curves.png").is_file()
    for name in ("last", "best"):
        found = metrics_of(finetuned / "evaluation" / name)
        assert (found["fusion"], found["queries"], found["candidates"]) == ("similarity", 8, 0)
        assert (finetuned / name / "preprocessor_config.json").is_file()
    before, after = (AutoModel.from_pretrained(each) for each in (models / "siglip", finetuned / "last"))
    other = [n for n, each in before.state_dict().items() if not torch.equal(each, after.state_dict()[n])]
    assert {"logit_scale", "logit_bias"} <= set(other)
    card = (finetuned / "last" / "README.md").read_text("utf-8")
    assert "Where it started: pretrained: all weights, from hf:siglip." in card
    assert str(models) not in card
    assert "AutoModel.from_pretrained" in card


def test_fine_tuned_weights_evaluated_alone_have_the_figures_of_their_run(finetuned, data, tmp_path):
    given = ("--evaluate", "--checkpoint", finetuned / "best", "--data", data, "--threads", 1, "--out", tmp_path)
    assert run(*given) == 0
    assert metrics_of(tmp_path) == metrics_of(finetuned / "evaluation" / "best")


def test_a_folder_of_transformers_is_evaluated_as_a_checkpoint(data, models, tmp_path):
    given = ("--evaluate", "--checkpoint", models / "clip", "--data", data, "--threads", 1, "--out", tmp_path)
    assert run(*given) == 0
    assert metrics_of(tmp_path)["fusion"] == "similarity"


def test_a_stopped_fine_tuning_ends_in_the_bytes_of_one_that_never_stopped(data, models, tmp_path, monkeypatch):
    from pipeline.training import trainer

    given = ("--model", f"hf:{models / 'clip'}", "--data", data, *FINETUNED, "--epochs", 3, "--save-every", 1)
    assert run(*given, "--out", tmp_path / "whole") == 0
    saves, save = [], trainer.save_state

    def stopping(*arguments):
        save(*arguments)
        saves.append(arguments)
        if len(saves) == 5:  # in the middle of the second epoch
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "save_state", stopping)
    assert run(*given, "--out", tmp_path / "stopped") == 130
    monkeypatch.undo()
    assert run(*given, "--out", tmp_path / "stopped") == 0
    for name in ("log.jsonl", "last/model.safetensors", "best/model.safetensors", "last/config.json"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_models_as_they_are_and_trained_ones_stand_in_one_table(data, models, finetuned, tmp_path):
    from pipeline.training.comparison import check_comparable, results_of

    assert run("--model", f"hf:{models / 'clip'}", "--data", data, "--threads", 1, "--out", tmp_path / "clip") == 0
    results = [results_of(tmp_path / "clip"), results_of(finetuned)]
    assert all(each is not None and each.finished for each in results)
    check_comparable(results)


def test_the_list_names_them(capsys):
    assert run("--list") == 0
    assert "hf:NAME or hf:FOLDER: a dual encoder of transformers" in capsys.readouterr().out


def test_where_a_run_goes_says_the_model_and_whether_it_was_trained():
    from pipeline.train_options import folder_of

    name = ("--model", "hf:openai/clip-vit-base-patch16")
    assert folder_of(name) == Path("runs/hf-openai-clip-vit-base-patch16-zero-shot")
    assert folder_of((*name, "--finetune", "--preset", "small")) == Path(
        "runs/hf-openai-clip-vit-base-patch16-small-seed42"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "hf:"), "name a model of the hub or a folder, e.g. hf:openai/clip-vit-base-patch16"),
        (("--model", "hf:nowhere/model"), "hf:nowhere/model: cannot be loaded"),
        (("--model", "cmp", "--finetune"), "--finetune goes with --model hf:NAME"),
        (("--model", "hf:CLIP", "--fusion", "single"), "has no matching head, so similarity alone ranks"),
        (("--model", "hf:CLIP", "--init", "minilm"), "brings its own weights; leave --init out"),
        (("--model", "hf:CLIP", "--reproduce", "paper"), "it has no published code here to follow"),
        (("--model", "hf:CLIP", "--set", "model.pose=true"), "model.pose: Input should be False"),
        (("--model", "hf:CLIP", "--set", "model.size={}"), "there is no option 'size' here"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(data, models, tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = [str(each).replace("CLIP", str(models / "clip")) for each in arguments]
    assert said in refused(capsys, *given, "--data", data, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_comparison_fine_tunes_the_rows_that_can_be_and_trains_the_others(data, models, tmp_path, capsys):
    given = (
        "--compare",
        f"cmp,hf:{models / 'clip'}",
        "--finetune",
        "--preset",
        "small",
        "--seeds",
        "1",
        "--data",
        data,
    )
    assert run(*given, "--out", tmp_path / "table", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "cmp" in told
    assert f"hf:{models / 'clip'}" in told
