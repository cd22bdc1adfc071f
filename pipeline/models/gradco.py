"""GradCO: expert streams (B-MoE), offload anchors for conflicting pairs (COL), weights read from the query (HIA).

The paper is published without formulas and without code: the equations are this project's, chosen to give what it
reports. B samples, T texts, I images, S streams in the order of `config.STREAMS`, K sub-experts, F feature width.

What goes on inside, for a batch and without a training step:

* `analysed_texts(tokens)`: stream features t (T, S, F), weights w (T, S), routing r (T, S, K);
* `analysed_images(images, poses)`: stream features v (B, S, F), routing r (B, S, K);
* `anchors(t, v)`: the anchors of all pairs (T, I, S, F); zeros in a network without them;
* `similarities(t, v, w, anchors=True)`: (T, I), as training has them; without anchors, as retrieval has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipeline.models.batch import Batch, HardPairs, Tokens
from pipeline.models.config import GradcoOptions
from pipeline.models.encoders import KeysValues
from pipeline.models.experts import ExpertStreams, StreamKeysValues
from pipeline.models.gather import Gather, first_row
from pipeline.models.layers import unit
from pipeline.models.losses import NegativeChooser, similarity_loss
from pipeline.models.network import EncodedImages, EncodedTexts, Losses, MatchingTerm, PairNetwork, Texts
from pipeline.models.offload import OffloadAnchors, conflicting


class AnalysedTexts(NamedTuple):
    """features: t (T, S, F), of any length. weights: w (T, S), rows summing to 1. routing: r (T, S, K), or None."""

    features: Tensor
    weights: Tensor
    routing: Tensor | None


class AnalysedImages(NamedTuple):
    """features: v (B, S, F), of any length. routing: r (B, S, K), or None without image-side experts."""

    features: Tensor
    routing: Tensor | None


class _Read(NamedTuple):
    """One modality. base: the encoder's tokens (B, N, W). streams: (B, S, N, W). features: (B, S, F) of any length."""

    base: Tensor
    streams: Tensor
    features: Tensor
    routing: Tensor | None


class _Pairs(NamedTuple):
    """All pairs of all processes, hard ones after the others. texts: captions (n), augmented captions (N) if any.

    identities: int64 (n,), of captions and images. regular: N, how many of the n are no hard pairs. conflict: bool
    (T, n), text and image tell one person's two behaviours; None where nothing asks for it.
    """

    texts: Tensor
    images: Tensor
    identities: Tensor
    regular: int
    conflict: Tensor | None = None


class GradCO(PairNetwork):
    """Texts and images in streams, compared stream by stream and weighed by what the text says.

    Features are not of length 1: a text's are its streams' directions, each times its weight, an image's its streams'
    directions, so that one inner product is the weighted sum of the streams' cosines.
    """

    options_type = GradcoOptions
    options: GradcoOptions

    def __init__(self, options: GradcoOptions) -> None:
        super().__init__(options)
        size, bmoe, hia = options.size, options.bmoe, options.hia
        streams, width = len(bmoe.streams), size.feature_width
        self.image_experts = ExpertStreams(size.image.width, bmoe) if bmoe.image_experts else None
        self.text_experts = ExpertStreams(size.text.width, bmoe) if bmoe.text_experts else None
        self.image_projection = _projection(size.image.width, width, streams, bmoe.proj == "per_stream")
        self.text_projection = _projection(size.text.width, width, streams, bmoe.proj == "per_stream")
        has_anchors = options.col.anchors and hia.similarity and hia.contrast
        self.offload = OffloadAnchors(streams, width, options.col) if has_anchors else None
        self.gate = (
            nn.Sequential(nn.Linear(streams * width, width), nn.GELU(), nn.Linear(width, streams))
            if hia.intent
            else None
        )
        self._freeze_unused()

    def _freeze_unused(self) -> None:
        """Keeps what no loss reaches as it is: a process group waits for the gradient of everything else."""
        options = self.options
        if not options.mlm_weight:
            self.language_head.requires_grad_(False)
        if not options.hia.matching:
            self.matching_head.requires_grad_(False)
            if not options.mlm_weight:
                self.cross_encoder.requires_grad_(False)
        if not options.hia.contrast:
            self.temperature.requires_grad_(False)
            self.image_projection.requires_grad_(False)
            if not options.hia.intent:
                self.text_projection.requires_grad_(False)

    @property
    def padding_counts(self) -> bool:
        """Features, weights and routers read [CLS] alone, so padding counts for nothing."""
        return False

    @property
    def matches(self) -> bool:
        """Whether `match` was trained; where not, similarities alone rank."""
        return self.options.hia.matching

    # -- streams, features, weights ------------------------------------------------------------------------------------

    def _read(self, base: Tensor, experts: ExpertStreams | None, projection: nn.Module, whole: bool) -> _Read:
        """(B, N, W) in streams; without `whole` of the first token alone, which makes the features."""
        routing = None if experts is None else experts.routing(base)
        tokens = base if whole else base[:, :1]
        if experts is None:
            streams = tokens[:, None].expand(-1, len(self.options.bmoe.streams), -1, -1)
        else:
            streams = experts(tokens, routing)
        return _Read(base, streams, projection(streams[:, :, 0]).float(), routing)

    def _read_texts(self, hidden: Tensor, whole: bool = True) -> _Read:
        return self._read(hidden, self.text_experts, self.text_projection, whole)

    def _read_images(self, tokens: Tensor, whole: bool = True) -> _Read:
        return self._read(tokens, self.image_experts, self.image_projection, whole)

    @property
    def _reads_streams(self) -> bool:
        """Whether the cross encoder reads streams, and not the encoders' own tokens."""
        return self.options.hia.feature and (self.options.hia.matching or self.options.mlm_weight > 0)

    def weights(self, features: Tensor) -> Tensor:
        """t (T, S, F) -> w (T, S) in float32, rows summing to 1; all alike without `hia.intent`."""
        if self.gate is None:
            return features.new_full(features.shape[:2], 1 / features.shape[1])
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.gate(unit(features).flatten(1))
            return (logits / self.options.hia.tau).softmax(dim=1)

    def _compared(self, read: _Read, projection: nn.Module) -> Tensor:
        """(B, S, F), what is compared: the streams, or without `hia.similarity` the encoder's own, as one (B, 1, F)."""
        if self.options.hia.similarity:
            return read.features
        whole: Tensor = projection(read.base[:, :1]).float()
        return whole

    def _compared_weights(self, features: Tensor) -> Tensor:
        """(T, S) for (T, S, F) of `_compared`."""
        return self.weights(features) if self.options.hia.similarity else features.new_ones(features.shape[:2])

    def _mixed(self, read: _Read, weights: Tensor) -> Tensor:
        """(T, L, D): what the cross encoder reads of texts."""
        if not self._reads_streams:
            return read.base
        return torch.einsum("tsld,ts->tld", read.streams, weights.to(read.streams.dtype))

    # -- what goes on inside -------------------------------------------------------------------------------------------

    def analysed_texts(self, texts: Tokens) -> AnalysedTexts:
        """Stream features, weights and routing of texts."""
        read = self._read_texts(self.text_encoder(texts.ids, texts.mask), whole=False)
        return AnalysedTexts(read.features, self.weights(read.features), read.routing)

    def analysed_images(self, images: Tensor, poses: Tensor | None = None) -> AnalysedImages:
        """Stream features and routing of images; (B, 3, S, S) each."""
        read = self._read_images(self.fused_images([images], [poses])[0], whole=False)
        return AnalysedImages(read.features, read.routing)

    def anchors(self, texts: Tensor, images: Tensor) -> Tensor:
        """t (T, S, F), v (I, S, F) -> (T, I, S, F), all at once; zeros where the network has none."""
        if self.offload is None:
            return texts.new_zeros(len(texts), len(images), *texts.shape[1:])
        found: Tensor = self.offload(texts, images)
        return found

    def similarities(self, texts: Tensor, images: Tensor, weights: Tensor, anchors: bool = True) -> Tensor:
        """t (T, S, F), v (I, S, F), w (T, S) -> (T, I): the streams' cosines, weighed by the text."""
        return self._scored(texts, images, weights, None, anchors)[0]

    def _scored(
        self, texts: Tensor, images: Tensor, weights: Tensor, stopped: Tensor | None, anchors: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(T, I) similarities and (T,) how alike each text's anchors are, None without anchors."""
        if self.offload is not None and anchors:
            scores = self.offload.scores(texts, images, stopped)
            return (scores.similarity * weights[:, None]).sum(dim=2), scores.direction
        with torch.autocast(texts.device.type, enabled=False):
            return _text_features(texts, weights) @ _image_features(images).t(), None

    # -- encoding and matching, as retrieval uses them -----------------------------------------------------------------

    def encode_images(self, images: Tensor, poses: Tensor | None = None) -> EncodedImages:
        """The encoder's tokens, of which `keys_values` makes the streams, and features [n(v^s)] (B, S F)."""
        tokens = self.fused_images([images], [poses])[0]
        read = self._read_images(tokens, whole=False)
        return EncodedImages(tokens, _image_features(self._compared(read, self.image_projection)))

    def encode_texts(self, texts: Tokens) -> EncodedTexts:
        """Hidden states, the streams weighed together; features [w_s n(t^s)] (T, S F); weights (T, S)."""
        read = self._read_texts(self.text_encoder(texts.ids, texts.mask), self._reads_streams)
        weights = self.weights(read.features)
        compared = self._compared(read, self.text_projection)
        features = _text_features(
            compared, weights if self.options.hia.similarity else compared.new_ones(len(compared), 1)
        )
        return EncodedTexts(self._mixed(read, weights), texts.mask, features, weights)

    def keys_values(self, image_tokens: Tensor) -> list[KeysValues]:
        """(B, N, W), the encoder's tokens -> keys and values of each layer, (B S, heads, N, D / heads): an image's
        streams under each other; (B, ...) where all streams are alike."""
        if not self._mixes_images:
            return self.cross_encoder.keys_values(image_tokens)
        return self.cross_encoder.keys_values(self._read_images(image_tokens).streams.flatten(0, 1))

    @property
    def _mixes_images(self) -> bool:
        """Whether images have streams that differ; weights sum to 1, so that like streams need no mixing."""
        return self._reads_streams and self.image_experts is not None

    def match(
        self,
        hidden: Tensor,
        mask: Tensor,
        images: list[KeysValues],
        text_rows: Tensor,
        image_rows: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Logits (P, 2) of pairs, the image's streams weighed by the pair's text.

        hidden, mask, weights: of `encode_texts`, rows by text.
        """
        return super().match(hidden, mask, self._of_pairs(images, weights, text_rows), text_rows, image_rows)

    def _of_pairs(self, images: list[KeysValues], weights: Tensor | None, text_rows: Tensor) -> list[KeysValues]:
        if not self._mixes_images:
            return images
        if weights is None:
            raise ValueError("the weights of the texts are needed to weigh the images' streams")
        of_pairs = weights.index_select(0, text_rows)
        return [StreamKeysValues(each.keys, each.values, of_pairs) for each in images]  # type: ignore[misc]

    # -- a training step -----------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, gather: Gather, choose: NegativeChooser) -> Losses:
        """L = L_itc + gamma L_dir (both in `itc`) + L_itm of one step, augmented captions weighted by `eda_weight`."""
        options = self.options
        tokens = self.step_images(batch)
        texts = self.step_texts(batch if options.mlm_weight else replace(batch, masked=None))
        read_images = self._read_images(torch.cat(tokens), self._reads_streams)
        read_texts = self._read_texts(texts.hidden, self._reads_streams)
        weights = self.weights(read_texts.features)
        texts.hidden, texts.weights = self._mixed(read_texts, weights), weights

        pairs = self._gathered(batch, texts, read_texts, read_images, gather)
        contrast, similarity = self._contrast(pairs)
        if options.bmoe.load_balance:
            sides = ((self.image_experts, read_images.base), (self.text_experts, read_texts.base))
            uneven = [experts.imbalance(base) for experts, base in sides if experts is not None]
            if uneven:
                contrast["balance"] = (options.bmoe.load_balance, torch.stack(uneven).mean())
        matching: dict[str, tuple[float, Tensor]] = {}
        language = torch.zeros((), device=weights.device)
        if options.hia.matching or options.mlm_weight:
            tokens_read = read_images.streams.flatten(0, 1) if self._mixes_images else read_images.base
            keys_values = self.cross_encoder.keys_values(tokens_read)
            if options.hia.matching:
                terms = self._matching_terms(batch, texts, similarity, gather, choose)
                matching = self.matching_losses(terms, texts, keys_values)
            if options.mlm_weight and batch.masked is not None:
                rows = torch.arange(len(batch.images), device=weights.device) + texts.start("masked")
                of_pairs = self._of_pairs(keys_values, weights, rows)
                language = options.mlm_weight * self.language_loss(batch, texts, of_pairs)
        return self.sum_up(contrast, matching, language)

    def _gathered(self, batch: Batch, texts: Texts, read_texts: _Read, read_images: _Read, gather: Gather) -> _Pairs:
        """What all processes compare. A hard image and its caption are a pair like others, with an identity of their
        own: positives of each other and negatives to everything else.

        Everything travels in one tensor of B rows, hard pairs in the rows of theirs: processes bring as many rows each,
        and all take part in the backward pass, however many hard pairs they have.
        """
        own = len(batch.images)
        compared = self._compared(read_texts, self.text_projection)
        images = self._compared(read_images, self.image_projection)
        groups = [images[:own], compared[texts.start("caption") :][:own]]
        if "eda" in texts:
            groups.append(compared[texts.start("eda") :][:own])
        identities, hard = batch.identities, None
        if self.options.col.use_hard and self.options.ihnm != "off":
            hard = batch.hard
            blank = groups[0] * 0
            if hard is None:
                groups += [blank, blank]
            else:
                captions = compared[texts.start("hard") :][: len(hard.rows)]
                groups += [blank.index_copy(0, hard.rows, rows) for rows in (images[own:], captions)]
            identities = torch.stack([batch.identities, _hard_identities(batch, hard)], dim=1)
        all_groups = list(gather(torch.stack(groups, dim=1)).unbind(1))
        all_identities = gather(identities)
        image, caption, augmented = all_groups[0], all_groups[1], all_groups[2:3] if "eda" in texts else []
        if all_identities.ndim == 1:
            return _Pairs(torch.cat([caption, *augmented]), image, all_identities, len(image))
        regular, partner = all_identities.unbind(1)
        kept = (partner != _NO_PAIR).nonzero()[:, 0]
        partner = torch.where(
            partner == _UNKNOWN, _UNKNOWN - 1 - torch.arange(len(partner), device=kept.device), partner
        )
        hard_image, hard_caption = (each.index_select(0, kept) for each in all_groups[-2:])
        everyone = torch.cat([regular, partner[kept]])
        conflict = None
        if self.options.col.stop_text_on_hard:
            told = torch.cat([everyone, regular]) if augmented else everyone
            conflict = conflicting(told, everyone, (regular[kept], partner[kept]))
        return _Pairs(
            torch.cat([caption, hard_caption, *augmented]),
            torch.cat([image, hard_image]),
            everyone,
            len(image),
            conflict,
        )

    def _contrast(self, pairs: _Pairs) -> tuple[dict[str, tuple[float, Tensor]], Tensor]:
        """The contrastive losses and the regulariser, and the similarities they are made of (T, n).

        The captions and the augmented ones stand before the same images, hard ones among both sides; what the hard
        captions have to do with the images is computed once.
        """
        options, count = self.options, len(pairs.images)
        weights = self._compared_weights(pairs.texts)
        with torch.set_grad_enabled(options.hia.contrast and torch.is_grad_enabled()):
            similarity, direction = self._scored(pairs.texts, pairs.images, weights, pairs.conflict, True)
        if not options.hia.contrast:
            return {}, similarity
        blocks = {"itc": (1.0, similarity[:count])}
        if len(pairs.texts) > count:
            augmented = torch.cat([similarity[count:], similarity[pairs.regular : count]])
            blocks["itc_eda"] = (options.eda_weight, augmented)
        contrast = {
            name: (
                weight,
                similarity_loss(block.t(), pairs.identities, self.temperature.float(), options.label_smooth),
            )
            for name, (weight, block) in blocks.items()
        }
        if direction is not None and options.col.gamma:
            contrast["dir"] = (options.col.gamma, direction.mean())
        return contrast, similarity.detach()

    def _matching_terms(
        self,
        batch: Batch,
        texts: Texts,
        similarity: Tensor,
        gather: Gather,
        choose: NegativeChooser,
    ) -> list[MatchingTerm]:
        """As CMP's, negatives drawn by this process's part of the similarities."""
        own = len(batch.images)
        start = first_row(gather, own)
        terms = []
        for name, group, weight, first in (
            ("itm", "caption", 1.0, start),
            ("itm_eda", "eda", self.options.eda_weight, similarity.shape[1] + start),
        ):
            if group in texts:
                block = similarity[first : first + own, start : start + own].t()
                terms.append(self.global_term(name, weight, texts, group, block, batch, choose))
        hard = self.hard_term(texts, batch)
        return [*terms, *([hard] if hard else [])]


_NO_PAIR, _UNKNOWN = -1, -2
"""In the place of a hard pair's identity: there is no pair; there is one whose identity nobody said."""


def _hard_identities(batch: Batch, hard: HardPairs | None) -> Tensor:
    """int64 (B,): of each pair's hard one."""
    found = torch.full_like(batch.identities, _NO_PAIR)
    if hard is None:
        return found
    known = torch.full_like(hard.rows, _UNKNOWN) if hard.identities is None else hard.identities
    return found.index_copy(0, hard.rows, known)


def _projection(width: int, feature_width: int, streams: int, per_stream: bool) -> nn.Module:
    if per_stream:
        return _StreamProjections(nn.Linear(width, feature_width) for _ in range(streams))
    return nn.Linear(width, feature_width)


class _StreamProjections(nn.ModuleList):
    """A projection for each stream."""

    def forward(self, first: Tensor) -> Tensor:
        """(B, S, W) -> (B, S, F)."""
        return torch.stack([each(first[:, number]) for number, each in enumerate(self)], dim=1)


def _text_features(texts: Tensor, weights: Tensor) -> Tensor:
    """(T, S, F), (T, S) -> (T, S F)."""
    return (unit(texts) * weights[:, :, None].float()).flatten(1)


def _image_features(images: Tensor) -> Tensor:
    """(I, S, F) -> (I, S F)."""
    return unit(images).flatten(1)
