from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.core.errors import UserError
from pipeline.models.batch import Batch, Tokens
from pipeline.models.build import load_network
from pipeline.models.config import DualOptions, OptimiserOptions
from pipeline.models.dual import DualEncoder, load_dual
from pipeline.models.gather import one_process
from pipeline.models.losses import HardestNegatives
from tests.models.tiny_dual import MAX_TOKENS, SIDE, saved

TEXTS = ["a person in red stands", "a man falls in a street with a green jacket", "a woman jumps"]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def folder(request, tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("dual") / request.param, request.param)


def loaded(folder: Path) -> DualEncoder:
    return load_dual(DualOptions(weights=str(folder)))


def pictures() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, size=(40 + 9 * n, 32 + 20 * n, 3), dtype=np.uint8) for n in range(3)]


def tokens_of(network: DualEncoder, texts: list[str]) -> Tokens:
    ids = torch.from_numpy(network.texts.ids(texts))
    return Tokens(ids, (ids != 0).long())


def batch_of(network: DualEncoder, identities: list[int]) -> Batch:
    images = torch.from_numpy(np.stack([network.pictures(each) for each in pictures()]))
    return Batch(images, tokens_of(network, TEXTS), torch.tensor(identities))


@torch.no_grad()
def test_features_and_similarities_are_those_of_transformers_called_directly(folder):
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    inputs = AutoImageProcessor.from_pretrained(folder)([Image.fromarray(p) for p in pictures()], return_tensors="pt")
    padding = "max_length" if model.config.model_type == "siglip" else True
    inputs |= AutoTokenizer.from_pretrained(folder)(TEXTS, padding=padding, truncation=True, return_tensors="pt")
    direct = model(**inputs)

    network = loaded(folder)
    batch = batch_of(network, [0, 1, 2])
    images, texts = network.encode_images(batch.images).features, network.encode_texts(batch.captions).features
    torch.testing.assert_close(images, direct.image_embeds, atol=1e-6, rtol=0)
    torch.testing.assert_close(texts, direct.text_embeds, atol=1e-6, rtol=0)
    logits = texts @ images.T * network.scale() + (model.logit_bias if network.sigmoid else 0)
    torch.testing.assert_close(logits, direct.logits_per_text, atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_loss_of_different_pairs_is_the_models_own(folder):
    network = loaded(folder)
    batch = batch_of(network, [0, 1, 2])
    direct = network.model(
        input_ids=(batch.captions.ids - 1).clamp(min=0),
        attention_mask=None if network.sigmoid else batch.captions.mask,
        pixel_values=batch.images,
        return_loss=True,
    )
    losses = network(batch, one_process, HardestNegatives())
    assert float(losses.total) == pytest.approx(float(direct.loss), abs=1e-5)
    assert float(losses.itm) == float(losses.mlm) == 0


@torch.no_grad()
def test_pairs_of_one_identity_are_positives_of_each_other(folder):
    network = loaded(folder)
    batch = batch_of(network, [7, 7, 2])
    images = network.encode_images(batch.images).features.double().numpy()
    texts = network.encode_texts(batch.captions).features.double().numpy()
    logits = images @ texts.T * float(network.scale()) + (float(network.model.logit_bias) if network.sigmoid else 0)
    same = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    if network.sigmoid:
        signs = 2 * same - 1
        wanted = sum(math.log1p(math.exp(-s * z)) for s, z in zip(signs.flat, logits.flat, strict=True)) / 3
    else:
        targets = same / same.sum(1, keepdims=True)
        rows, columns = (z - np.log(np.exp(z).sum(1, keepdims=True)) for z in (logits, logits.T))
        wanted = -((targets * rows).sum() + (targets * columns).sum()) / 6
    assert float(network(batch, one_process, HardestNegatives()).total) == pytest.approx(wanted, abs=1e-4)


def test_every_weight_learns_and_is_in_one_group(folder):
    network = loaded(folder).train()
    network(batch_of(network, [0, 1, 2]), one_process, HardestNegatives()).total.backward()
    without = [name for name, each in network.named_parameters() if each.grad is None]
    assert without == []
    groups = network.parameter_groups(OptimiserOptions(lr=1e-5, lr_multiple=3.0))
    names = [name for group in groups for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in network.named_parameters())
    multiplied = {name for group in groups if group["lr"] > 2e-5 for name in group["names"]}
    assert "model.logit_scale" in multiplied
    assert not any("text_model." in name or "vision_model." in name for name in multiplied)
    decayed = [each for group in groups if group["weight_decay"] for each in group["params"]]
    assert all(each.ndim > 1 for each in decayed)


def test_a_caption_is_read_as_it_was_written_and_counted_where_it_is_cut(folder):
    network = loaded(folder)
    assert network.texts.text("  A man,\n falls.  ") == "A man, falls."
    assert network.texts.text(" \n ") == ""
    long = "a person " * 10
    assert network.texts.cut([TEXTS[0], long, long]) == 2
    ids = network.texts.ids([TEXTS[0], long])
    assert ids.shape == (2, MAX_TOKENS)
    hidden = (ids[0] == 0).sum()
    assert hidden == (0 if network.sigmoid else MAX_TOKENS - 7)  # what SigLIP pads is read like any other token
    assert (ids[1] > 0).all()


def test_pictures_are_those_of_the_models_own_image_processor(folder):
    network = loaded(folder)
    found = network.pictures(np.full((64, 48, 3), 255, dtype=np.uint8))
    assert (found.shape, found.dtype) == ((3, SIDE, SIDE), np.float32)
    config = json.loads((folder / "preprocessor_config.json").read_text())
    wanted = [(1 - mean) / std for mean, std in zip(config["image_mean"], config["image_std"], strict=True)]
    assert np.allclose(found.reshape(3, -1), np.array(wanted)[:, None], atol=1e-5)


def test_saved_weights_come_back_the_same_for_us_and_for_transformers(folder, tmp_path):
    from transformers import AutoModel, AutoProcessor

    network = loaded(folder)
    with torch.no_grad():
        network.model.logit_scale.add_(0.25)
    for name in ("one", "two"):
        network.save_pretrained(tmp_path / name, None, ["Trained on nothing."])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert first == second
    assert b"Trained on nothing." in first["README.md"]
    assert str(folder.parent).encode() not in b"".join(first.values())
    back = load_network(tmp_path / "one")
    assert isinstance(back, DualEncoder)
    for name, own in network.state_dict().items():
        assert torch.equal(back.state_dict()[name], own)
    assert torch.equal(AutoModel.from_pretrained(tmp_path / "one").logit_scale, network.model.logit_scale)
    assert AutoProcessor.from_pretrained(tmp_path / "one") is not None


# --- what cannot be used


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as told:
        loaded(folder)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_model_that_makes_no_features_of_both_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert "is a bert model, which has no get_image_features and no get_text_features" in refused(tmp_path)


def test_code_of_a_checkpoint_is_never_run(folder, tmp_path):
    marker = tmp_path / "ran"
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}})
    )
    (place / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass C: pass\nclass M: pass\n")
    assert "cannot be loaded" in refused(place)
    assert not marker.exists()


def test_pickled_weights_are_not_read(folder, tmp_path):
    from safetensors.torch import load_file

    for path in folder.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    assert "cannot be loaded" in refused(tmp_path)


def test_weights_that_miss_a_tensor_are_refused_rather_than_drawn_at_random(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    for path in folder.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    del weights["text_model.final_layer_norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "its weights miss text_model.final_layer_norm.weight (and 0 more)" in refused(tmp_path)


def test_a_model_that_is_not_there_is_named_in_one_line(tmp_path):
    assert f"hf:{tmp_path / 'nowhere'}: cannot be loaded" in refused(tmp_path / "nowhere")


def test_a_model_that_learns_no_scale_is_not_trained(folder):
    network = loaded(folder)
    del network.model.logit_scale
    with pytest.raises(UserError, match="no logit_scale and no temperature"):
        network.scale()


@torch.no_grad()
def test_a_text_feature_that_is_read_at_the_last_position_keeps_its_padding_where_there_is_a_mask(tmp_path):
    from tests.models.tiny_dual import tokenizer

    folder = saved(tmp_path / "siglip", "siglip")
    tokenizer(mask=True).save_pretrained(folder)
    network = loaded(folder)
    inputs = tokenizer(mask=True)(["a man falls"], padding="max_length", max_length=MAX_TOKENS, return_tensors="pt")
    direct = network.model.get_text_features(**inputs).pooler_output
    found = network.encode_texts(tokens_of(network, ["a man falls"])).features
    torch.testing.assert_close(found, direct / direct.norm(dim=-1, keepdim=True), atol=1e-6, rtol=0)


def test_what_prepares_samples_can_be_sent_to_a_worker(folder):
    import pickle

    from pipeline.models.config import AugmentationOptions
    from pipeline.training.batches import Prepared
    from pipeline.training.dual_batches import DualPreparer
    from tests.training.tiny_run import sample_set

    network = loaded(folder)
    here = DualPreparer(sample_set(4, broken=(3,)), AugmentationOptions(), network.pictures, network.texts, 5)
    there = pickle.loads(pickle.dumps(here))
    one, other = here[1, 2], there[1, 2]
    assert isinstance(one, Prepared)
    assert isinstance(other, Prepared)
    assert np.array_equal(one.image, other.image)
    assert np.array_equal(one.caption, other.caption)
    assert (one.image.shape, one.pose, one.masked) == ((3, SIDE, SIDE), None, None)
    assert not isinstance(here[0, 3], Prepared)
