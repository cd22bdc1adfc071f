"""Encoders of images and texts, and the encoder that reads both together.

B images, T texts, P pairs of the two; L text tokens of width D, N image tokens of width W.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertModel, SwinConfig, SwinModel
from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput, BertSelfOutput
from transformers.models.swin.modeling_swin import SwinMLP

from pipeline.models.config import ImageSize, TextSize


class ImageEncoder(nn.Module):
    """Swin; in front of its patch tokens stands their mean, which takes the place of a [CLS] token."""

    def __init__(self, size: ImageSize) -> None:
        super().__init__()
        config = SwinConfig(
            image_size=size.image_size,
            patch_size=size.patch_size,
            embed_dim=size.embed_dim,
            depths=list(size.depths),
            num_heads=list(size.heads),
            window_size=size.window,
            drop_path_rate=size.drop_path,
        )
        self.size = size
        self.swin = SwinModel(config, add_pooling_layer=False)
        stages: Any = self.swin.encoder.layers
        for stage in stages:
            for block in stage.blocks:
                block.mlp = _SkippedMlp(config, block.layernorm_after.normalized_shape[0], block.drop_path)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, 1 + patches, W)."""
        patches = self.swin(images).last_hidden_state
        return torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1)

    def gradient_checkpointing(self, enabled: bool) -> None:
        """Whether activations are computed again in the backward pass instead of being kept."""
        if enabled:
            self.swin.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.swin.gradient_checkpointing_disable()
        stages: Any = self.swin.encoder.layers
        for stage in stages:  # its blocks are enough: a stage around them would compute everything a third time
            stage.gradient_checkpointing = False


class _SkippedMlp(SwinMLP):
    """Swin's MLP under stochastic depth, which transformers applies to the attention branch alone."""

    def __init__(self, config: SwinConfig, width: int, drop_path: nn.Module) -> None:
        super().__init__(config, width)
        self.drop_path = drop_path

    def forward(self, hidden_states: Tensor) -> Tensor:
        skipped: Tensor = self.drop_path(super().forward(hidden_states))
        return skipped


def bert_config(size: TextSize, layers: int) -> BertConfig:
    """The configuration of `layers` BERT layers."""
    return BertConfig(
        vocab_size=size.vocab_size,
        hidden_size=size.width,
        num_hidden_layers=layers,
        num_attention_heads=size.heads,
        intermediate_size=size.ffn_width,
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=size.dropout,
        max_position_embeddings=size.max_positions,
    )


class TextEncoder(nn.Module):
    """The first layers of BERT, without a pooler."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.bert = BertModel(bert_config(size, size.text_layers), add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """int64 (T, L) twice -> (T, L, D). Padding is no key, but has outputs of its own."""
        hidden: Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden

    @property
    def word_embeddings(self) -> Tensor:
        """(V, D)."""
        weight: Tensor = self.bert.embeddings.word_embeddings.weight
        return weight


class KeysValues(NamedTuple):
    """An image's keys and values in one layer of the cross encoder: (B, heads, N, D / heads) each."""

    keys: Tensor
    values: Tensor

    def of(self, rows: Tensor) -> KeysValues:
        """Those of some images."""
        return KeysValues(self.keys.index_select(0, rows), self.values.index_select(0, rows))


class CrossEncoder(nn.Module):
    """BERT layers that read a text (self-attention) and an image (cross-attention to keys and values of its tokens).

    A pair costs only what depends on both its text and its image: keys and values are projected once an image, the
    first self-attention and the first queries are computed once a text, and the last layer computes only the positions
    that are asked for. The outputs are those of running every pair through every layer.
    """

    def __init__(self, size: TextSize, image_width: int) -> None:
        super().__init__()
        config = bert_config(size, size.cross_layers)
        self.layer = nn.ModuleList(_CrossLayer(config, image_width) for _ in range(size.cross_layers))
        self.checkpointed = False
        """Whether activations are computed again in the backward pass instead of being kept."""
        self.apply(_initialise_as_bert)

    def keys_values(self, image_tokens: Tensor) -> list[KeysValues]:
        """(B, N, W) -> keys and values of each layer."""
        layers: Iterable[Any] = self.layer
        return [layer.crossattention.self.keys_values(image_tokens) for layer in layers]

    def forward(
        self,
        texts: Tensor,
        mask: Tensor,
        images: list[KeysValues],
        text_rows: Tensor,
        image_rows: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """The hidden states of each pair at the positions asked for: (P, K, D).

        texts: (T, L, D) out of the text encoder. mask: (T, L). images: of `keys_values`. text_rows, image_rows: int64
        (P,), which text and which image make a pair. positions: int64 (P, K).
        """
        visible = mask.bool()[:, None, None, :]
        last = len(self.layer) - 1
        hidden = texts
        pair_visible = visible.index_select(0, text_rows)
        for number, layer in enumerate(self.layer):
            arguments = (
                hidden,
                visible if number == 0 else pair_visible,
                images[number],
                image_rows,
                text_rows if number == 0 else None,
                positions if number == last else None,
            )
            if self.checkpointed and self.training:
                hidden = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                hidden = layer(*arguments)
        return hidden


class _CrossLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each with a residual and a layer norm after it."""

    def __init__(self, config: BertConfig, image_width: int) -> None:
        super().__init__()
        self.attention = _Attention(config, config.hidden_size)
        self.crossattention = _Attention(config, image_width)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(
        self,
        hidden: Tensor,
        visible: Tensor,
        images: KeysValues,
        image_rows: Tensor,
        text_rows: Tensor | None,
        positions: Tensor | None,
    ) -> Tensor:
        """(T or P, L, D) -> (P, L or K, D); text_rows only where rows of `hidden` are texts and not yet pairs."""
        if positions is not None and text_rows is not None:
            hidden, visible = hidden.index_select(0, text_rows), visible.index_select(0, text_rows)
            text_rows = None
        if positions is None:
            queries = hidden
            attended = self.attention.self(hidden, *self.attention.self.keys_values(hidden), visible)
        else:
            queries = hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[2]))
            attended = self.attention.self.at_few(queries, hidden, visible)
        hidden = self.attention.output(attended, queries)
        cross_queries = self.crossattention.self.query(hidden)
        if text_rows is not None:
            hidden, cross_queries = hidden.index_select(0, text_rows), cross_queries.index_select(0, text_rows)
        attended = self.crossattention.self.attend(cross_queries, *images.of(image_rows), None)
        hidden = self.crossattention.output(attended, hidden)
        layer_output: Tensor = self.output(self.intermediate(hidden), hidden)
        return layer_output


class _Attention(nn.Module):
    """BERT's attention and what follows it, by BERT's names, with keys and values of any width."""

    def __init__(self, config: BertConfig, key_width: int) -> None:
        super().__init__()
        self.self = _Heads(config, key_width)
        self.output = BertSelfOutput(config)


class _Heads(nn.Module):
    def __init__(self, config: BertConfig, key_width: int) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(key_width, config.hidden_size)
        self.value = nn.Linear(key_width, config.hidden_size)

    def keys_values(self, tokens: Tensor) -> KeysValues:
        return KeysValues(self._by_head(self.key(tokens)), self._by_head(self.value(tokens)))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
        return self.attend(self.query(queries), keys, values, visible)

    def attend(self, projected: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
        """(P, L, D), already projected -> (P, L, D). visible: bool (P, 1, 1, N); None where every key is."""
        dropout = self.dropout if self.training else 0.0
        heads = self._by_head(projected)
        attended = functional.scaled_dot_product_attention(heads, keys, values, attn_mask=visible, dropout_p=dropout)
        return attended.transpose(1, 2).flatten(2)

    def at_few(self, queries: Tensor, tokens: Tensor, visible: Tensor) -> Tensor:
        """(P, K, D), (P, L, D) -> (P, K, D): attention of few queries to many tokens without projecting the tokens.

        q.(W x + b) = (W'q).x + q.b, and the sum of a_i (W x_i + b) is W applied to the sum of a_i x_i, plus b times
        the sum of a_i: the projections move from L tokens to K queries.
        """
        pairs, count, width = queries.shape
        if count * self.heads > tokens.shape[1] * width // self.heads:
            return self(queries, *self.keys_values(tokens), visible)
        head_width = width // self.heads
        by_head = self.query(queries).view(pairs, count, self.heads, head_width) * head_width**-0.5
        key_weight = self.key.weight.view(self.heads, head_width, -1)
        folded = torch.einsum("pkhd,hdw->phkw", by_head, key_weight)
        # The same for every token, so softmax cancels it; left out, the bias would have no gradient, not one of 0.
        constant = torch.einsum("pkhd,hd->phk", by_head, self.key.bias.view(self.heads, head_width))
        scores = folded.flatten(1, 2) @ tokens.transpose(1, 2) + constant.flatten(1)[:, :, None]
        scores = scores.masked_fill(~visible[:, 0], torch.finfo(scores.dtype).min)
        shares = functional.dropout(scores.softmax(dim=-1), self.dropout, self.training)
        gathered = (shares @ tokens).view(pairs, self.heads, count, -1)
        value_weight = self.value.weight.view(self.heads, head_width, -1)
        values = torch.einsum("phkw,hdw->pkhd", gathered, value_weight)
        totals = shares.sum(dim=-1).view(pairs, self.heads, count).transpose(1, 2)
        values = values + totals[..., None] * self.value.bias.view(self.heads, head_width)
        return values.reshape(pairs, count, width)

    def _by_head(self, projected: Tensor) -> Tensor:
        return projected.unflatten(2, (self.heads, -1)).transpose(1, 2)


def _initialise_as_bert(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
