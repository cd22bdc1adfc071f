"""Tiny checkpoints for the pose and similarity engines: the classes of the real ones, fitted for seconds or random.

What they say means nothing of the image, but is of use to a build: the detector finds one person in every image, in a
box that fills most of it, the surer the brighter the image is, so that a threshold keeps some images and drops others;
ViTPose draws the same standing body into every box. ResNet-50's weights are random.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

BOX = (0.5, 0.5, 0.6, 0.9)
"""The detector's box: centre, width and height as shares of the image. In square and tall images the whole body that
ViTPose draws is inside, in wide ones it is cut off.
"""
_STANDING = np.array(
    [
        *([0.50, 0.14], [0.53, 0.12], [0.47, 0.12], [0.57, 0.14], [0.43, 0.14]),
        *([0.63, 0.26], [0.37, 0.26], [0.68, 0.40], [0.32, 0.40], [0.69, 0.52], [0.31, 0.52]),
        *([0.58, 0.54], [0.42, 0.54], [0.58, 0.72], [0.42, 0.72], [0.58, 0.88], [0.42, 0.88]),
    ]
)
"""The standing body that ViTPose is fitted to: COCO-17, x and y as shares of the enlarged box that it looks at."""
_POSE_SIZE = (128, 96)  # height and width; a heatmap has a quarter of either
_DETECTOR_SIDE = 32


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """torch's random numbers from this seed, on one thread; what they were before comes back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
    torch.set_num_threads(threads)


def _kwargs(**given: Any) -> dict[str, Any]:
    """Settings that the configurations take and do not declare."""
    return given


def _fit(model: Any, loss_of: Any, steps: int, rate: float) -> None:
    import torch

    optimiser = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=rate)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimiser.zero_grad()
        loss_of().backward()
        optimiser.step()
    model.eval()


def write_tiny_vitpose(folder: Path, seed: int = 0, experts: int = 1, joints: int = 17, steps: int = 150) -> None:
    """Save a ViTPose of some 50,000 weights, with its processor. experts: above 1 as in ViTPose+. steps: of fitting;
    with none the weights are random and the pixels count, else the joints hang on their box alone.
    """
    import torch
    from transformers import VitPoseBackboneConfig, VitPoseConfig, VitPoseForPoseEstimation, VitPoseImageProcessorPil

    height, width = _POSE_SIZE
    with _seeded(seed):
        backbone = VitPoseBackboneConfig(
            image_size=[height, width],
            patch_size=[16, 16],
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            mlp_ratio=2,
            num_experts=experts,
            part_features=8,
            **_kwargs(out_indices=[2]),
        )
        config = VitPoseConfig(backbone_config=backbone, use_simple_decoder=True, **_kwargs(num_labels=joints))
        model = VitPoseForPoseEstimation(config).eval()
        rows, columns = np.mgrid[: height // 4, : width // 4]
        across, down = (_STANDING * (width / 4 - 1, height / 4 - 1)).T[:, :, None, None]
        peaks = 0.9 * np.exp(-((columns - across) ** 2 + (rows - down) ** 2) / (2 * 2.0**2))
        target = torch.from_numpy(np.resize(peaks, (joints, height // 4, width // 4))).float()
        crop = torch.zeros(1, 3, height, width)

        def loss() -> Any:
            maps = [
                model(crop, **({"dataset_index": torch.tensor([expert])} if experts > 1 else {})).heatmaps
                for expert in range(experts)
            ]
            return sum(((each - target) ** 2 * (1 + 10 * target)).mean() * 100 for each in maps)

        if steps:
            model.backbone.embeddings.patch_embeddings.projection.weight.data.zero_()
            torch.nn.init.normal_(model.backbone.embeddings.position_embeddings, std=1.0)
            _fit(model, loss, steps, rate=1e-2)
            model.backbone.embeddings.patch_embeddings.projection.weight.data.zero_()
    model.save_pretrained(folder)
    VitPoseImageProcessorPil(size={"height": height, "width": width}).save_pretrained(folder)


def write_tiny_detector(folder: Path, seed: int = 0, steps: int = 80) -> None:
    """Save an RT-DETR that sees one person in every image, in `BOX`; the score rises with the mean brightness, from
    about 0.25 in a black image to 0.7 in a white one. Its other class is `dog`.
    """
    import torch
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrImageProcessorPil, RTDetrResNetConfig

    with _seeded(seed):
        # One map of one cell: a single place where anything can be, in the middle of the image.
        backbone = RTDetrResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 8, 8, 8],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            **_kwargs(out_indices=[4]),
        )
        config = RTDetrConfig(
            backbone_config=backbone,
            encoder_hidden_dim=16,
            encoder_in_channels=[8],
            feat_strides=[_DETECTOR_SIDE],
            encode_proj_layers=[0],
            encoder_ffn_dim=32,
            encoder_attention_heads=2,
            d_model=16,
            num_queries=1,
            num_feature_levels=1,
            decoder_in_channels=[16],
            decoder_ffn_dim=32,
            decoder_layers=2,
            decoder_attention_heads=2,
            num_denoising=0,
            id2label={0: "person", 1: "dog"},
            label2id={"person": 0, "dog": 1},
        )
        model = RTDetrForObjectDetection(config).eval()
        _place_box(model)
        # A layer norm follows, which forgets how large its input is: beside a constant of about its size it cannot.
        after_backbone = model.model.encoder_input_proj[0][1]
        after_backbone.weight.data.fill_(1e-3)
        after_backbone.bias.data.normal_()

        def loss() -> Any:
            brightness = torch.rand(16)
            pixels = brightness[:, None, None, None] + 0.1 * torch.randn(16, 3, _DETECTOR_SIDE, _DETECTOR_SIDE)
            wanted = torch.stack([0.1 + 0.8 * brightness, torch.full_like(brightness, 0.02)], dim=-1)
            logits = model(pixels.clamp(0, 1)).logits[:, 0]
            return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)

        _fit(model, loss, steps, rate=1e-2)
    model.save_pretrained(folder)
    size = {"height": _DETECTOR_SIDE, "width": _DETECTOR_SIDE}
    RTDetrImageProcessorPil(size=size).save_pretrained(folder)


def _place_box(model: Any) -> None:
    """Make the detector's box `BOX`, and keep it from being fitted: each layer's head moves the box before it."""
    import torch

    anchors, _ = model.model.generate_anchors(((1, 1),))
    first, *others = model.model.decoder.bbox_embed
    for head in (model.model.enc_bbox_head, first, *others):
        for parameter in head.parameters():
            parameter.requires_grad_(False)
        head.layers[-1].weight.zero_()
        head.layers[-1].bias.zero_()
    first.layers[-1].bias.copy_(torch.logit(torch.tensor(BOX)) - anchors.reshape(4))


def write_tiny_resnet(folder: Path, seed: int = 0) -> None:
    """Save a ResNet with random weights and four narrow stages (32 features), with its processor."""
    from transformers import ConvNextImageProcessorPil, ResNetConfig, ResNetModel

    with _seeded(seed):
        config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic")
        model = ResNetModel(config).eval()
    model.save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 224}, crop_pct=0.875).save_pretrained(folder)
