from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from pipeline.models.config import ImageSize, StpOptions, TextSize
from pipeline.models.encoders import CrossEncoder, ImageEncoder, TextEncoder
from pipeline.models.factors import FactorTokens

TEXT = TextSize(vocab_size=50, width=16, heads=4, ffn_width=32, text_layers=2, cross_layers=3, max_positions=16)


def spread(module: nn.Module, seed: int = 0) -> nn.Module:
    """Weights large enough for attention to be far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return module.eval()


def masks(lengths: list[int], width: int) -> Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


def pair_by_pair(encoder: CrossEncoder, text: Tensor, mask: Tensor, image: Tensor) -> Tensor:
    """One pair through transformers' own layers, every position of every layer."""
    config = BertConfig(
        hidden_size=16, num_attention_heads=4, intermediate_size=32, is_decoder=True, add_cross_attention=True
    )
    config._attn_implementation = "eager"
    hidden = text[None]
    for layer in encoder.layer:
        bert = BertLayer(config).eval()
        bert.crossattention.self.key = nn.Linear(image.shape[1], 16)
        bert.crossattention.self.value = nn.Linear(image.shape[1], 16)
        bert.load_state_dict(layer.state_dict())
        hidden = bert(hidden, (1.0 - mask[None, None, None].float()) * -10000, image[None])
    return hidden[0]


def test_pairs_have_the_outputs_of_running_each_through_berts_own_layers():
    encoder = CrossEncoder(TEXT, 24)
    spread(encoder)
    generator = torch.Generator().manual_seed(1)
    texts, images = torch.randn(3, 9, 16, generator=generator), torch.randn(4, 7, 24, generator=generator)
    mask = masks([9, 4, 2], 9)
    text_rows, image_rows = torch.tensor([2, 0, 0, 1, 2]), torch.tensor([3, 0, 3, 1, 2])
    everywhere = torch.arange(9).expand(5, -1)
    few = torch.tensor([[0, 3], [8, 0], [2, 2], [1, 3], [0, 0]])
    with torch.no_grad():
        keys_values = encoder.keys_values(images)
        whole = encoder(texts, mask, keys_values, text_rows, image_rows, everywhere)
        part = encoder(texts, mask, keys_values, text_rows, image_rows, few)
        for pair, (text, image) in enumerate(zip(text_rows, image_rows, strict=True)):
            expected = pair_by_pair(encoder, texts[text], mask[text], images[image])
            assert torch.allclose(whole[pair], expected, atol=1e-5)
            assert torch.allclose(part[pair], expected[few[pair]], atol=1e-5)


def test_few_positions_have_the_gradients_of_all():
    encoder = CrossEncoder(TEXT, 24)
    spread(encoder)
    generator = torch.Generator().manual_seed(1)
    texts, images = torch.randn(2, 9, 16, generator=generator), torch.randn(2, 7, 24, generator=generator)
    mask, own = masks([9, 4], 9), torch.arange(2)
    gradients = []
    for positions in (torch.zeros(2, 1, dtype=torch.long), torch.arange(9).expand(2, -1)):
        encoder.zero_grad()
        encoder(texts, mask, encoder.keys_values(images), own, own, positions)[:, 0].sum().backward()
        gradients.append({name: each.grad.clone() for name, each in encoder.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-5), name


def test_checkpointing_changes_no_output_and_no_gradient():
    encoder = CrossEncoder(TEXT.model_copy(update={"dropout": 0.0}), 24)
    spread(encoder).train()
    generator = torch.Generator().manual_seed(1)
    texts = torch.randn(2, 9, 16, generator=generator, requires_grad=True)
    images, own = torch.randn(2, 7, 24, generator=generator), torch.arange(2)
    seen = []
    for checkpointed in (False, True):
        encoder.checkpointed = checkpointed
        texts.grad = None
        out = encoder(texts, masks([9, 4], 9), encoder.keys_values(images), own, own, own[:, None] * 0)
        out.sum().backward()
        seen.append((out.detach(), texts.grad))
    assert torch.equal(seen[0][0], seen[1][0])
    assert torch.allclose(seen[0][1], seen[1][1], atol=1e-6)


def test_every_word_is_read_with_the_words_after_it_and_without_padding():
    encoder = TextEncoder(TEXT)
    spread(encoder)
    ids = torch.tensor([[1, 7, 8, 9, 0, 0]])
    mask = masks([4], 6)
    with torch.no_grad():
        hidden = encoder(ids, mask)
        last_changed = encoder(torch.tensor([[1, 7, 8, 10, 0, 0]]), mask)
        padding_changed = encoder(torch.tensor([[1, 7, 8, 9, 5, 5]]), mask)
    assert not torch.allclose(hidden[0, 0], last_changed[0, 0], atol=1e-3)
    assert torch.allclose(hidden[0, :4], padding_changed[0, :4], atol=1e-6)


def test_the_first_image_token_is_the_mean_of_the_others():
    size = ImageSize(image_size=32, embed_dim=8, depths=(1, 2), heads=(1, 2), window=4)
    tokens = ImageEncoder(size).eval()(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert tokens.shape == (2, 1 + size.patches, size.width)
    assert torch.allclose(tokens[:, 0], tokens[:, 1:].mean(1), atol=1e-6)


def test_a_skipped_block_lets_tokens_pass_unchanged_in_both_of_its_branches():
    size = ImageSize(image_size=32, embed_dim=8, depths=(1, 2), heads=(1, 2), window=4, drop_path=1.0)
    encoder = ImageEncoder(size).train()
    blocks = encoder.swin.encoder.layers[1].blocks
    tokens = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))
    blocks[1].drop_path.drop_prob = 1 - 1e-6
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        assert torch.equal(blocks[1](tokens, (4, 4))[0], tokens)


def test_softmax_weights_are_shares_and_sigmoid_weights_are_not():
    tokens = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    for weighting in ("sigmoid", "softmax"):
        factors = FactorTokens(8, 12, StpOptions(weighting=weighting))
        spread(factors)
        weights = factors.weights(tokens)
        assert factors(tokens).shape == (2, 3, 12)
        assert torch.allclose(weights.sum(2), torch.ones(2, 3), atol=1e-5) == (weighting == "softmax")


def test_masked_padding_gives_nothing_to_a_factor():
    tokens = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
    changed_padding = tokens.clone()
    changed_padding[:, 4:] += 3
    mask = masks([4], 6)
    for weighting in ("sigmoid", "softmax", "cross_attention"):
        for mask_pad in (True, False):
            factors = FactorTokens(8, 12, StpOptions(weighting=weighting, mask_pad=mask_pad))
            spread(factors)
            same = torch.allclose(factors(tokens, mask), factors(changed_padding, mask), atol=1e-5)
            assert same == mask_pad, weighting
