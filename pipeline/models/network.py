"""What the networks share: encoding, matching, and the sum of losses of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipeline.models.batch import Batch, Tokens
from pipeline.models.beit import BeitEncoder
from pipeline.models.config import BeitSize, NetworkOptions
from pipeline.models.encoders import CrossEncoder, ImageEncoder, KeysValues, TextEncoder
from pipeline.models.gather import Gather
from pipeline.models.layers import LanguageHead, MatchingHead, PoseBlock, PoseConv, masked_mean, three_bins, unit
from pipeline.models.losses import (
    MATCH,
    NO_MATCH,
    NegativeChooser,
    contrastive_loss,
    draw_negatives,
    masked_language_loss,
    matching_loss,
)
from pipeline.models.pretrained import Pretrained


class EncodedImages(NamedTuple):
    """tokens: (B, 1 + patches, W), with the pose fused in. features: (B, F), rows of length 1 unless the network says
    otherwise."""

    tokens: Tensor
    features: Tensor


class EncodedTexts(NamedTuple):
    """hidden: (B, L, D). mask: (B, L). features: (B, F), rows of length 1 unless the network says otherwise.

    weights: (B, streams), what a text says of how its pairs are matched; None where it says nothing.
    """

    hidden: Tensor
    mask: Tensor
    features: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Losses:
    """The three losses of a step, weighted and ready to be added, and every term in them, unweighted, by name."""

    itc: Tensor
    itm: Tensor
    mlm: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        return self.itc + self.itm + self.mlm


@dataclass(frozen=True)
class MatchingTerm:
    """Pairs for the matching head whose mean loss is one term.

    text_rows, image_rows: int64 (P,), into all texts and all images of the step. labels: int64 (P,).
    """

    name: str
    weight: float
    text_rows: Tensor
    image_rows: Tensor
    labels: Tensor


class Texts:
    """All texts of a step, encoded together; each group keeps its rows.

    Groups share one length L: that of their ids, or, `trimmed`, that of the longest text, groups of short texts being
    encoded apart and filled with zeros, which the mask hides. Trimming is for networks in which padding counts for
    nothing.
    """

    def __init__(self, encoder: TextEncoder, groups: Mapping[str, Tokens], trimmed: bool = False) -> None:
        self.weights: Tensor | None = None
        """(T, streams) of all texts, where the network weighs streams by what a text says."""
        self.mask = torch.cat([each.mask for each in groups.values()])
        ids = torch.cat([each.ids for each in groups.values()])
        if trimmed:
            self.hidden, self.mask = _encoded_trimmed(encoder, ids, self.mask, [len(e.ids) for e in groups.values()])
        else:
            self.hidden = encoder(ids, self.mask)
        self._starts: dict[str, int] = {}
        self._counts = {name: len(each.ids) for name, each in groups.items()}
        start = 0
        for name, count in self._counts.items():
            self._starts[name] = start
            start += count

    def __contains__(self, group: str) -> bool:
        return group in self._starts

    def start(self, group: str) -> int:
        """The first row of a group."""
        return self._starts[group]

    def hidden_of(self, group: str) -> Tensor:
        """(B, L, D) of a group."""
        return self.hidden[self._starts[group] : self._starts[group] + self._counts[group]]

    def mask_of(self, group: str) -> Tensor:
        """(B, L) of a group."""
        return self.mask[self._starts[group] : self._starts[group] + self._counts[group]]


def _encoded_trimmed(encoder: TextEncoder, ids: Tensor, mask: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Hidden states (T, L, D) and mask (T, L) of groups of `counts` texts each, L being the longest text's length."""
    group_lengths = [int(each.any(dim=0).sum()) for each in mask.split(list(counts))]
    longest = max(group_lengths)
    short = torch.tensor([2 * length <= longest for length in group_lengths], device=ids.device)
    is_short = short.repeat_interleave(torch.tensor(counts, device=ids.device))
    if not bool(is_short.any()):
        return encoder(ids[:, :longest], mask[:, :longest]), mask[:, :longest]
    width = max(length for length in group_lengths if 2 * length <= longest)
    long_rows, short_rows = (~is_short).nonzero()[:, 0], is_short.nonzero()[:, 0]
    long = encoder(ids[long_rows, :longest], mask[long_rows, :longest])
    cut = encoder(ids[short_rows, :width], mask[short_rows, :width])
    filled = torch.nn.functional.pad(cut, (0, 0, 0, longest - width))
    order = torch.cat([long_rows, short_rows]).argsort()
    return torch.cat([long, filled]).index_select(0, order), mask[:, :longest]


class PairNetwork(Pretrained):
    """Image encoder, text encoder, cross encoder and heads; a subclass makes features of the tokens."""

    def __init__(self, options: NetworkOptions) -> None:
        super().__init__()
        size = options.size
        self.options = options
        self.image_encoder = BeitEncoder(size.image) if isinstance(size.image, BeitSize) else ImageEncoder(size.image)
        self.text_encoder = TextEncoder(size.text)
        self.cross_encoder = CrossEncoder(size.text, size.image.width)
        self.matching_head = MatchingHead(size.text.width)
        self.language_head = LanguageHead(size.text.width, size.text.vocab_size, options.mlm.tie)
        self.temperature = nn.Parameter(torch.tensor(options.temperature))
        self.pose_block = PoseBlock(size.image.width, size.pose_heads) if options.pose else None
        self.pose_conv = PoseConv() if options.pose and options.pose_conv else None
        if self.language_head.decoder is not None:
            with torch.no_grad():
                self.language_head.decoder.copy_(self.text_encoder.word_embeddings)

    # -- what a subclass decides; GradCO, whose features are read off streams, encodes images and texts itself ---------

    def image_feature(self, tokens: Tensor) -> Tensor:
        """(B, 1 + patches, W) -> (B, F), not yet of length 1."""
        raise NotImplementedError

    def text_feature(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(B, L, D), (B, L) -> (B, F), not yet of length 1."""
        raise NotImplementedError

    @property
    def padding_counts(self) -> bool:
        """Whether a text's feature depends on its padding; where not, texts are cut after their last real token."""
        raise NotImplementedError

    def prepare(self, tokenised: Callable[[Sequence[str]], Tokens]) -> None:
        """Called once before training, with what makes tokens of texts; a network that needs nothing does nothing."""

    def begin_epoch(self, epoch: int) -> None:
        """Called at the start of every epoch, counted from 0, but not where a run goes on inside it."""

    @property
    def matches(self) -> bool:
        """Whether `match` was trained; where not, similarities alone rank."""
        return True

    # -- encoding and matching, as retrieval uses them -----------------------------------------------------------------

    def fused_images(self, images: Sequence[Tensor], poses: Sequence[Tensor | None]) -> list[Tensor]:
        """Image tokens of groups of images, each group with its pose maps, all in one pass of the image encoder.

        The pose convolutions see each group for itself, since their batch norm counts groups.
        """
        pictures = list(images)
        if self.pose_block is not None:
            for group in poses:
                if group is None:
                    raise ValueError("this network encodes pose maps, and none were given")
                pictures.append(group if self.pose_conv is None else self.pose_conv(group))
        tokens = self.image_encoder(torch.cat(pictures)).split([len(each) for each in pictures])
        if self.pose_block is None:
            return list(tokens)
        count = len(images)
        fused = self.pose_block(torch.cat(tokens[:count]), torch.cat(tokens[count:]))
        return list(fused.split([len(each) for each in images]))

    def encode_images(self, images: Tensor, poses: Tensor | None = None) -> EncodedImages:
        """Tokens and features of images; (B, 3, S, S) each."""
        tokens = self.fused_images([images], [poses])[0]
        return EncodedImages(tokens, unit(self.image_feature(tokens)))

    def encode_texts(self, texts: Tokens) -> EncodedTexts:
        """Hidden states and features of texts."""
        hidden = self.text_encoder(texts.ids, texts.mask)
        return EncodedTexts(hidden, texts.mask, unit(self.text_feature(hidden, texts.mask)))

    def keys_values(self, image_tokens: Tensor) -> list[KeysValues]:
        """What the cross encoder needs of images, a layer each; made once an image, whatever the number of pairs."""
        return self.cross_encoder.keys_values(image_tokens)

    def match(
        self,
        hidden: Tensor,
        mask: Tensor,
        images: list[KeysValues],
        text_rows: Tensor,
        image_rows: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Logits (P, 2) of pairs; column 1 says that text and image match.

        hidden, mask: (T, L, D) and (T, L) of texts, which may be cut after the longest text's last real token.
        text_rows, image_rows: int64 (P,), into texts and images. weights: (T, streams) of `encode_texts`, for networks
        that have streams.
        """
        first = torch.zeros(len(text_rows), 1, dtype=torch.long, device=hidden.device)
        crossed = self.cross_encoder(hidden, mask, images, text_rows, image_rows, first)
        logits: Tensor = self.matching_head(crossed[:, 0])
        return logits

    def gradient_checkpointing(self, enabled: bool = True) -> None:
        """Whether the encoders compute activations again in the backward pass instead of keeping them."""
        self.image_encoder.gradient_checkpointing(enabled)
        if enabled:
            self.text_encoder.bert.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.text_encoder.bert.gradient_checkpointing_disable()
        self.cross_encoder.checkpointed = enabled

    # -- the parts of a training step ----------------------------------------------------------------------------------

    def step_images(self, batch: Batch) -> list[Tensor]:
        """Tokens of the batch's images and, where there are any, of the hard images."""
        images, poses = [batch.images], [batch.poses]
        if batch.hard is not None and self.options.ihnm != "off":
            images.append(batch.hard.images)
            poses.append(batch.hard.poses)
        return self.fused_images(images, poses)

    def step_texts(self, batch: Batch, more: Mapping[str, Tokens] | None = None) -> Texts:
        """All texts of the batch: `caption`, then `eda`, `masked` and `hard` where the options need them."""
        groups = {"caption": batch.captions}
        if self.options.eda_weight > 0:
            if batch.augmented is None:
                raise ValueError("eda_weight asks for augmented captions, and the batch has none")
            groups["eda"] = batch.augmented
        if batch.masked is not None:
            groups["masked"] = Tokens(batch.masked.ids, batch.captions.mask)
        if batch.hard is not None and self.options.ihnm != "off":
            groups["hard"] = batch.hard.captions
        return Texts(self.text_encoder, {**groups, **(more or {})}, trimmed=not self.padding_counts)

    def contrast(self, images: Tensor, texts: Tensor, identities: Tensor) -> Tensor:
        """CMP's contrastive loss with this network's temperature; gathered rows of length 1."""
        return contrastive_loss(images, texts, identities, self.temperature.float(), self.options.label_smooth)

    def in_batch_term(
        self,
        name: str,
        weight: float,
        texts: Texts,
        group: str,
        similarity: Tensor,
        batch: Batch,
        choose: NegativeChooser,
    ) -> MatchingTerm:
        """B matching pairs, B with an image of another identity, B with a text of another identity (CMP, L_itm).

        similarity: (B, B), images down and texts across, which says how likely a negative is drawn.
        """
        image_negatives, text_negatives = draw_negatives(similarity, batch.identities, self.temperature, choose)
        own = torch.arange(len(batch.images), device=batch.images.device)
        start = texts.start(group)
        return MatchingTerm(
            name,
            weight,
            text_rows=torch.cat([own, own, text_negatives]) + start,
            image_rows=torch.cat([own, image_negatives, own]),
            labels=_labels(len(own), 2 * len(own), own),
        )

    def global_term(
        self,
        name: str,
        weight: float,
        texts: Texts,
        group: str,
        similarity: Tensor,
        batch: Batch,
        choose: NegativeChooser,
    ) -> MatchingTerm:
        """The matching term of the captions or of the augmented ones: with `ihnm` "replace" its negatives are the hard
        pairs, else they are drawn from the batch."""
        if self.options.ihnm != "replace":
            return self.in_batch_term(name, weight, texts, group, similarity, batch, choose)
        own = torch.arange(len(batch.images), device=batch.images.device)
        start = texts.start(group)
        text_rows, image_rows = [own + start], [own]
        if batch.hard is not None:
            hard = torch.arange(len(batch.hard.rows), device=own.device)
            text_rows += [hard + texts.start("hard"), batch.hard.rows + start]
            image_rows += [batch.hard.rows, hard + len(own)]
        negatives = sum(len(each) for each in text_rows[1:])
        return MatchingTerm(
            name, weight, torch.cat(text_rows), torch.cat(image_rows), _labels(len(own), negatives, own)
        )

    def hard_term(self, texts: Texts, batch: Batch) -> MatchingTerm | None:
        """Image with the hard caption and hard image with the caption, none of which match (CMP, IHNM)."""
        if batch.hard is None or self.options.ihnm != "extra":
            return None
        hard = torch.arange(len(batch.hard.rows), device=batch.images.device)
        return MatchingTerm(
            "itm_hard",
            1.0,
            text_rows=torch.cat([hard + texts.start("hard"), batch.hard.rows + texts.start("caption")]),
            image_rows=torch.cat([batch.hard.rows, hard + len(batch.images)]),
            labels=_labels(0, 2 * len(hard), hard),
        )

    def matching_losses(
        self, terms: Iterable[MatchingTerm], texts: Texts, images: list[KeysValues]
    ) -> dict[str, tuple[float, Tensor]]:
        """Weight and mean loss of each term, by name; the pairs of all terms run through the cross encoder together."""
        terms = list(terms)
        text_rows = torch.cat([each.text_rows for each in terms])
        image_rows = torch.cat([each.image_rows for each in terms])
        logits = self.match(texts.hidden, texts.mask, images, text_rows, image_rows, texts.weights).float()
        parts = logits.split([len(each.labels) for each in terms])
        return {
            each.name: (each.weight, matching_loss(part, each.labels)) for each, part in zip(terms, parts, strict=True)
        }

    def language_loss(self, batch: Batch, texts: Texts, images: list[KeysValues]) -> Tensor:
        """Loss of the hidden tokens, read from masked caption and image; 0 where nothing was masked (CMP, L_mlm)."""
        if batch.masked is None:
            return torch.zeros((), device=batch.images.device)
        own = torch.arange(len(batch.images), device=batch.images.device)
        hidden = self.cross_encoder(
            texts.hidden_of("masked"), texts.mask_of("masked"), images, own, own, batch.masked.positions
        )
        logits = self.language_head(hidden.flatten(0, 1), self.text_encoder.word_embeddings)
        return masked_language_loss(logits.float(), batch.masked.labels.flatten())

    def keys_values_of(self, tokens: Sequence[Tensor]) -> list[KeysValues]:
        """Keys and values of all images of a step, the hard ones after the others."""
        return self.keys_values(torch.cat(list(tokens)))

    @staticmethod
    def sum_up(
        contrast: Mapping[str, tuple[float, Tensor]], matching: Mapping[str, tuple[float, Tensor]], language: Tensor
    ) -> Losses:
        """Weighted sums of the terms."""
        itc, itm = (
            torch.stack([weight * loss for weight, loss in terms.values()] or [language * 0]).sum()
            for terms in (contrast, matching)
        )
        terms = {name: loss.detach() for name, (_, loss) in {**contrast, **matching}.items()}
        return Losses(itc, itm, language, {**terms, "mlm": language.detach()})

    def forward(self, batch: Batch, gather: Gather, choose: NegativeChooser) -> Losses:
        """The losses of one step.

        gather: rows of all processes (`gather.one_process` where there is one). choose: draws in-batch negatives.
        """
        raise NotImplementedError


def _labels(matching: int, others: int, like: Tensor) -> Tensor:
    return torch.cat([like.new_full((matching,), MATCH), like.new_full((others,), NO_MATCH)])


def pooled(tokens: Tensor, mask: Tensor | None, pool: str, with_first: bool) -> Tensor:
    """(B, L, D) -> (B, n D): the tokens after the first, pooled, and the first itself.

    `p3`: three bins over all tokens, padding among them, behind the first token where `with_first`. `avg_cls`: mean
    over the tokens that the mask keeps (all without a mask), then the first (CMP, equation 4).
    """
    if pool == "avg_cls":
        kept = torch.ones_like(tokens[:, 1:, 0]) if mask is None else mask[:, 1:]
        return torch.cat([masked_mean(tokens[:, 1:], kept), tokens[:, 0]], dim=1)
    bins = three_bins(tokens[:, 1:])
    return torch.cat([tokens[:, 0], bins], dim=1) if with_first else bins


def pooled_width(width: int, pool: str, with_first: bool) -> int:
    """Width of what `pooled` gives."""
    return width * (2 if pool == "avg_cls" else 3 + with_first)
