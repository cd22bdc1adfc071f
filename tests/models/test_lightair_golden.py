"""LightAIR's head against the numbers recorded from the published implementation."""

import pytest
import torch

from pipeline.models.config import CodebookOptions
from pipeline.models.layers import unit
from pipeline.models.lightair import ActionParts
from tests.models.golden import golden, weight_of

TENSORS = ("v_proj", "z_act", "z_id", "z_final", "logits")


def recorded_head(mode: str) -> tuple[torch.nn.Linear, ActionParts]:
    plain, _ = golden("lightair_head")
    width, features = plain["vision_width"], plain["embed_dim"]
    options = CodebookOptions(
        phrases=tuple(map(str, range(plain["num_actions"]))),
        top_k=plain["top_k"],
        action_temp=plain["action_temp"],
        entropy_tau=plain["entropy_tau"],
        projection_epsilon=plain["projection_epsilon"],
        input=mode,
        rectify="detach_projection",
    )
    projection, parts = torch.nn.Linear(width, features), ActionParts(width, features, options)
    for module, names in ((projection, "vision_proj."), (parts, "")):
        for name, parameter in module.named_parameters():
            parameter.data = weight_of(published(names + name), tuple(parameter.shape))
    return projection, parts


def published(name: str) -> str:
    for ours, theirs in (
        ("mapper_projected.", "action_mapper_projected."),
        ("mapper.", "action_mapper."),
        ("gates.", "nsc."),
    ):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


@pytest.mark.parametrize("mode", ["projected", "raw"])
def test_every_recorded_tensor_loss_and_gradient_norm_of_the_head_is_reproduced(mode: str) -> None:
    plain, arrays = golden("lightair_head")
    projection, parts = recorded_head(mode)
    images = arrays[f"{mode}.image_embeds"].clone().requires_grad_()
    text = arrays[f"{mode}.text"]
    found = parts(images[:, 0], projection(images[:, 0]), arrays[f"{mode}.codebook"])
    for name, tensor in zip(
        TENSORS, (found.feature, found.action, found.appearance, found.joined, found.logits), strict=True
    ):
        torch.testing.assert_close(tensor, arrays[f"{mode}.{name}"], atol=2e-4, rtol=0)
    loss = (1 - torch.nn.functional.cosine_similarity(found.action, unit(text), dim=1)).mean()
    assert loss.item() == pytest.approx(plain[mode]["loss_cls_query"], abs=1e-4)
    objective = (found.joined * text).sum() + loss
    assert objective.item() == pytest.approx(plain[mode]["objective"], abs=1e-4)
    objective.backward()
    torch.testing.assert_close(images.grad, arrays[f"{mode}.grad_image_embeds"], atol=2e-4, rtol=0)
    norms = {published(f"vision_proj.{name}"): each.grad.norm().item() for name, each in projection.named_parameters()}
    norms |= {published(name): each.grad.norm().item() for name, each in parts.named_parameters()}
    wanted = {name: value for name, value in plain[mode]["grad_l2"].items() if value is not None}
    assert norms == pytest.approx(wanted, rel=1e-3)
