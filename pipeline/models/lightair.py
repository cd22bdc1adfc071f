"""LightAIR: an image's action is told in a codebook of phrases and taken out of its appearance; gates join the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.core.errors import UserError
from pipeline.models.batch import Batch, Tokens
from pipeline.models.config import CodebookOptions, LightairOptions
from pipeline.models.gather import Gather
from pipeline.models.layers import unit
from pipeline.models.losses import NegativeChooser, similarities
from pipeline.models.network import Losses, PairNetwork

NO_PHRASE = -1
"""The number of a label that is no phrase of the codebook."""
_TINY = 1e-8


class Decoupled(NamedTuple):
    """An image's feature in parts, float32 (B, F): `action` read off the codebook, `appearance` without it, `joined` by
    the gates, and the whole `feature` they were made of; rows of length 1. logits: (B, phrases)."""

    feature: Tensor
    action: Tensor
    appearance: Tensor
    joined: Tensor
    logits: Tensor


class ActionParts(nn.Module):
    """Sparse inversion into the codebook, null-space projection, rectification and gates."""

    def __init__(self, width: int, feature_width: int, options: CodebookOptions) -> None:
        super().__init__()
        self.options = options
        raw = options.input == "raw"
        inner = width if raw else feature_width
        mapper = nn.Sequential(
            nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, inner), nn.GELU(),
            nn.Linear(inner, len(options.phrases)),
        )  # fmt: skip
        # The published code has both and uses one; here there is that one, under its name.
        self.mapper = mapper if raw else None
        self.mapper_projected = None if raw else mapper
        self.gates = nn.Sequential(
            nn.Linear(2 * feature_width, feature_width), nn.ReLU(), nn.Linear(feature_width, 2 * feature_width)
        )

    def forward(self, first: Tensor, feature: Tensor, codebook: Tensor) -> Decoupled:
        """first: (B, W), the image encoder's mean token. feature: (B, F), projected, of any length. codebook: (phrases,
        F), rows of length 1."""
        options = self.options
        feature = unit(feature)
        if self.mapper is not None:
            logits = self.mapper(first).float()
        else:
            assert self.mapper_projected is not None
            logits = self.mapper_projected(feature.to(first.dtype)).float()
        kept = logits.topk(min(options.top_k, logits.shape[1]), dim=1)
        shares = (kept.values / options.action_temp).softmax(dim=1)
        action = unit((shares[:, :, None] * codebook[kept.indices]).sum(dim=1))
        entropy = -(shares * (shares + _TINY).log()).sum(dim=1, keepdim=True)
        sureness = (-entropy / options.entropy_tau).exp()
        appearance = unit(feature - self._projection(feature, action, sureness))
        gates = self.gates(torch.cat([action, appearance], dim=1).to(first.dtype)).float().sigmoid()
        of_action, of_appearance = gates.chunk(2, dim=1)
        return Decoupled(feature, action, appearance, unit(of_action * action + of_appearance * appearance), logits)

    def _projection(self, feature: Tensor, action: Tensor, sureness: Tensor) -> Tensor:
        """What of the feature points where the action does. Its value is the same in all forms; with sureness 1 its
        gradient leaves out that of the direction (`detach_pi`) or all of it (`detach_projection`)."""
        along = _along(feature, action, self.options.projection_epsilon)
        if self.options.rectify == "none":
            return along
        if self.options.rectify == "detach_projection":
            fixed = along.detach()
        else:
            fixed = _along(feature, action.detach(), self.options.projection_epsilon)
        return sureness * fixed + (1 - sureness) * along


def _along(feature: Tensor, direction: Tensor, epsilon: float) -> Tensor:
    length = direction.square().sum(dim=1, keepdim=True) + epsilon
    return (feature * direction).sum(dim=1, keepdim=True) / length * direction


class LightAIR(PairNetwork):
    """Images are searched by what the gates make of action and appearance, texts by their [CLS].

    The codebook has a row a phrase, the phrase's text feature; `set_codebook` makes it before training, and it is saved
    with the weights. Raises UserError where the options name no phrase.
    """

    options_type = LightairOptions
    options: LightairOptions
    codebook: Tensor

    def __init__(self, options: LightairOptions) -> None:
        super().__init__(options)
        size = options.size
        if not options.codebook.phrases:
            raise UserError(
                "LightAIR needs the phrases of its codebook: train on data whose rows have actions and anomalies, or "
                "name them with --set 'model.codebook.phrases=[walking, falling]'"
            )
        self.image_projection = nn.Linear(size.image.width, size.feature_width)
        self.text_projection = nn.Linear(size.text.width, size.feature_width)
        self.action_parts = ActionParts(size.image.width, size.feature_width, options.codebook)
        codebook = torch.zeros(len(options.codebook.phrases), size.feature_width)
        self.register_buffer("codebook", codebook)
        self._phrases: Tokens | None = None
        if options.mlm_weight == 0:  # part of the encoders' weights, and of no loss
            self.language_head.requires_grad_(False)

    def prepare(self, tokenised: Callable[[Sequence[str]], Tokens]) -> None:
        """Makes the codebook of the options' phrases with the text encoder as it stands."""
        self._phrases = tokenised(self.options.codebook.phrases)
        self._encode_phrases()

    def begin_epoch(self, epoch: int) -> None:
        """Makes the codebook anew every `refresh_epochs` epochs."""
        every = self.options.codebook.refresh_epochs
        if every and epoch and epoch % every == 0:
            self._encode_phrases()

    @torch.no_grad()
    def _encode_phrases(self) -> None:
        assert self._phrases is not None, "prepare was not called"
        phrases = self._phrases.to(self.codebook.device)
        was_training = self.training
        self.train(not self.options.codebook.eval_mode)
        with torch.autocast(self.codebook.device.type, enabled=False):
            hidden = self.text_encoder(phrases.ids, phrases.mask)
            self.codebook.copy_(unit(self.text_feature(hidden, phrases.mask)))
        self.train(was_training)

    def decoupled(self, tokens: Tensor) -> Decoupled:
        """(B, 1 + patches, W) -> the image's feature in parts."""
        first = tokens[:, 0]
        found: Decoupled = self.action_parts(first, self.image_projection(first), self.codebook)
        return found

    def image_feature(self, tokens: Tensor) -> Tensor:
        """(B, 1 + patches, W) -> (B, F), of length 1."""
        return self.decoupled(tokens).joined

    def text_feature(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, L, D), (B, L) -> (B, F), not yet of length 1."""
        feature: Tensor = self.text_projection(hidden[:, 0])
        return feature

    @property
    def padding_counts(self) -> bool:
        """The text feature is read off [CLS] alone."""
        return False

    def forward(self, batch: Batch, gather: Gather, choose: NegativeChooser) -> Losses:
        """L = L_itc + cls_weight L_cls + itm_weight L_itm of one step (+ mlm_weight L_mlm)."""
        options = self.options
        tokens = self.step_images(batch)
        texts = self.step_texts(batch if options.mlm_weight else replace(batch, masked=None))
        identities = gather(batch.identities)
        image = self.decoupled(tokens[0])
        all_images = gather(image.joined)
        contrast: dict[str, tuple[float, Tensor]] = {}
        terms = []
        for group, suffix, weight in (("caption", "", 1.0), ("eda", "_eda", options.eda_weight)):
            if group not in texts:
                continue
            text = unit(self.text_feature(texts.hidden_of(group), texts.mask_of(group)))
            contrast[f"itc{suffix}"] = (weight, self.contrast(all_images, gather(text), identities))
            similarity = similarities(image.joined, text)
            terms.append(self.global_term(f"itm{suffix}", weight, texts, group, similarity, batch, choose))
            if group == "caption" and options.cls_weight and batch.actions is not None:
                contrast["action"] = (options.cls_weight, self.action_loss(image.action, text, batch.actions))
        hard = self.hard_term(texts, batch)
        images = self.keys_values_of(tokens)
        matching = self.matching_losses([*terms, *([hard] if hard else [])], texts, images)
        weighted = {name: (options.itm_weight * weight, loss) for name, (weight, loss) in matching.items()}
        language = torch.zeros((), device=image.joined.device)
        if options.mlm_weight:
            language = options.mlm_weight * self.language_loss(batch, texts, images)
        return self.sum_up(contrast, weighted, language)

    def action_loss(self, actions: Tensor, texts: Tensor, labels: Tensor) -> Tensor:
        """Mean of 1 - cos(action part, target) over the samples whose label is a phrase; 0 where none is (L_cls).

        actions, texts: (B, F), rows of length 1. labels: int64 (B,), numbers of phrases or `NO_PHRASE`.
        """
        known = labels != NO_PHRASE
        targets = texts.detach()
        if self.options.codebook.target == "codebook":
            targets = self.codebook[labels.clamp(min=0)]
        apart = 1 - functional.cosine_similarity(actions, targets, dim=1)
        return (apart * known).sum() / known.sum().clamp(min=1)
