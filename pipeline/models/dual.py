"""Other people's dual encoders: any model of transformers that makes a feature of an image and one of a text.

CLIP, SigLIP, ALIGN, AltCLIP, Chinese-CLIP and their like, by their name on the hub or out of a folder, with the image
processor and the tokenizer that belong to them. Weights are read from safetensors alone, and no code out of a
checkpoint is ever run. There is no matching head: similarity alone ranks.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.core.errors import UserError, one_line
from pipeline.core.store import write_atomically
from pipeline.models.batch import Batch, Tokens
from pipeline.models.config import DualOptions, OptimiserOptions, Recipe
from pipeline.models.gather import Gather
from pipeline.models.layers import unit
from pipeline.models.losses import NegativeChooser, similarities, similarity_loss
from pipeline.models.network import EncodedImages, EncodedTexts, Losses
from pipeline.models.pretrained import CARD_FILE, CONFIG_FILE
from pipeline.models.recipes import shown_name

_METHODS = ("get_image_features", "get_text_features")
_POOLS_THE_LAST_TOKEN = ("siglip", "siglip2", "siglip_text_model", "siglip2_text_model")
"""Models whose text feature is read at the last position, padding or not: texts keep their full length."""
_SHIFTED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "altclip_text_model", "altclip")
"""Text encoders whose first positions, up to that of padding, no token stands at."""
_MOST_TOKENS = 512


class DualTexts:
    """Captions as the token ids of a model's own tokenizer, each one higher, so that 0 is padding as everywhere here.

    Captions stay as they were written, case and punctuation included: these models were trained on natural text.
    """

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        self._tokenizer, self.max_tokens = tokenizer, max_tokens

    def text(self, caption: str) -> str:
        """The caption in one line; empty where it holds nothing but spaces."""
        return " ".join(caption.split())

    def ids(self, texts: Sequence[str]) -> np.ndarray:
        """int64 (N, max_tokens): ids one higher than the tokenizer's, 0 where its mask hides the position.

        A tokenizer without a mask (SigLIP's) hides nothing: its padding is read like any other token.
        """
        found = self._tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self.max_tokens, return_tensors="np"
        )
        ids = np.asarray(found["input_ids"], dtype=np.int64) + 1
        return ids * np.asarray(found["attention_mask"], dtype=np.int64) if "attention_mask" in found else ids

    def cut(self, texts: Sequence[str]) -> int:
        """How many of the texts have more tokens than the model reads."""
        longer = 0
        for start in range(0, len(texts), 1000):
            found = self._tokenizer(list(texts[start : start + 1000]), truncation=False, verbose=False)
            longer += sum(len(each) > self.max_tokens for each in found["input_ids"])
        return longer


class DualPictures:
    """Pictures as a model's own image processor makes them: its size, its resampling, its mean and deviation."""

    def __init__(self, processor: Any, name: str) -> None:
        self._processor, self._name = processor, name
        self.shape = self._processed(np.full((48, 32, 3), 128, dtype=np.uint8)).shape
        if len(self.shape) != 3 or self.shape[0] != 3:
            raise UserError(
                f"hf:{name}: its image processor gives arrays of {'x'.join(map(str, self.shape))}, not pictures of one "
                "size; use a model with a fixed resolution"
            )

    def __call__(self, picture: np.ndarray) -> np.ndarray:
        """float32 (3, H, W) of uint8 RGB of any size. Raises UserError where the size hangs on the picture's."""
        found = self._processed(picture)
        if found.shape != self.shape:
            raise UserError(
                f"hf:{self._name}: its image processor keeps the shape of a picture ({found.shape[1]} x "
                f"{found.shape[2]}, another had {self.shape[1]} x {self.shape[2]}); use a model with a fixed resolution"
            )
        return found

    def _processed(self, picture: np.ndarray) -> np.ndarray:
        from PIL import Image

        found = self._processor(images=Image.fromarray(picture), return_tensors="pt")["pixel_values"]
        return np.ascontiguousarray(found[0].numpy(), dtype=np.float32)


class DualEncoder(nn.Module):
    """A dual encoder of transformers in the place of a network: features, and the contrastive loss of its own form."""

    matches = False
    """Whether there is a matching head."""

    def __init__(self, options: DualOptions, model: Any, tokenizer: Any, image_processor: Any) -> None:
        super().__init__()
        self.options = options
        self.model = model
        self._tokenizer, self._image_processor = tokenizer, image_processor
        text_config = getattr(model.config, "text_config", model.config)
        self._keeps_length = model.config.model_type in _POOLS_THE_LAST_TOKEN
        self._has_mask = "attention_mask" in tokenizer.model_input_names
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.pictures = DualPictures(image_processor, options.weights)
        self.texts = DualTexts(tokenizer, max_tokens_of(tokenizer, text_config))

    @property
    def sigmoid(self) -> bool:
        """Whether each pair is judged for itself (SigLIP, with a bias), not among the others of its row (CLIP)."""
        return hasattr(self.model, "logit_bias")

    def encode_images(self, images: Tensor, poses: Tensor | None = None) -> EncodedImages:
        """Features of images (B, 3, H, W), rows of length 1; there are no tokens to match."""
        features = unit(_features(self.model.get_image_features(pixel_values=images)))
        return EncodedImages(features.new_empty(len(features), 0, 0), features)

    def encode_texts(self, texts: Tokens) -> EncodedTexts:
        """Features of texts (ids of `DualTexts`), rows of length 1; there are no hidden states to match."""
        ids, mask = texts.ids, texts.mask
        if self._has_mask and not self._keeps_length:
            length = int(mask.any(dim=0).nonzero().max()) + 1
            ids, mask = ids[:, :length], mask[:, :length]
        given = {"input_ids": torch.where(ids > 0, ids - 1, self._pad)}
        if self._has_mask:
            given["attention_mask"] = mask
        features = unit(_features(self.model.get_text_features(**given)))
        return EncodedTexts(features.new_empty(len(features), texts.mask.shape[1], 0), texts.mask, features)

    def scale(self) -> Tensor:
        """What similarities are multiplied by. Raises UserError for a model that does not learn it."""
        if hasattr(self.model, "logit_scale"):
            return torch.exp(self.model.logit_scale.float())
        if hasattr(self.model, "temperature"):
            return torch.reciprocal(self.model.temperature.float())
        raise UserError(
            f"hf:{self.options.weights}: {type(self.model).__name__} has no logit_scale and no temperature, so nothing "
            "says how its contrastive loss is scaled; leave --finetune out"
        )

    def forward(self, batch: Batch, gather: Gather, choose: NegativeChooser) -> Losses:
        """The contrastive loss over the pairs of all processes; pairs of one identity are positives of each other.

        With a bias, the mean over images of the sum over texts of -log sigmoid(+-(scale x similarity + bias)) (SigLIP);
        else cross-entropy in both directions (CLIP).
        """
        images = gather(self.encode_images(batch.images).features)
        texts = gather(self.encode_texts(batch.captions).features)
        identities = gather(batch.identities)
        similarity = similarities(images, texts)
        if self.sigmoid:
            logits = similarity * self.scale() + self.model.logit_bias.float()
            loss = sigmoid_loss(logits, identities)
        else:
            loss = similarity_loss(similarity, identities, 1 / self.scale(), self.options.label_smooth)
        none = loss.detach() * 0
        return Losses(loss, none, none, {"itc": loss.detach()})

    def begin_epoch(self, epoch: int) -> None:
        """Nothing is made anew for an epoch."""

    def gradient_checkpointing(self, enabled: bool = True) -> None:
        """Whether the encoders compute activations again in the backward pass instead of keeping them."""
        if enabled:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()

    def parameter_groups(self, options: OptimiserOptions) -> list[dict[str, Any]]:
        """AdamW's groups: matrices decayed, all else not; what joins the two encoders (projections, scale, bias) at
        `lr_multiple` times `lr`."""
        groups: list[dict[str, Any]] = [
            {"params": [], "names": [], "lr": options.lr * multiple, "weight_decay": decay}
            for multiple in (1.0, options.lr_multiple)
            for decay in (options.weight_decay, 0.0)
        ]
        for name, parameter in self.model.named_parameters():
            joins = not name.startswith(("text_model.", "vision_model."))
            group = groups[2 * joins + (parameter.ndim < 2)]
            group["params"].append(parameter)
            group["names"].append(f"model.{name}")
        return [group for group in groups if group["params"]]

    def save_pretrained(self, folder: Path | str, recipe: Recipe | None = None, notes: Sequence[str] = ()) -> None:
        """Writes model, tokenizer and image processor as transformers writes them, and a card, each file whole or not
        at all: AutoModel and AutoProcessor read the folder. The same weights give the same bytes."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as new:
            _quiet()
            self.model.save_pretrained(new, max_shard_size="1000GB")
            self._tokenizer.save_pretrained(new)
            self._image_processor.save_pretrained(new)
            for path in sorted(path for path in Path(new).rglob("*") if path.is_file()):
                place = folder / path.relative_to(new)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
        write_atomically(folder / CARD_FILE, self._card(recipe, notes).encode())

    def _card(self, recipe: Recipe | None, notes: Sequence[str]) -> str:
        name = shown_name(self.options.weights)
        height, width = self.pictures.shape[1:]
        total = sum(each.numel() for each in self.parameters())
        loss = "sigmoid over all pairs" if self.sigmoid else "softmax in both directions"
        return "\n".join(
            [
                "---",
                "library_name: transformers",
                *([f"base_model: {name}"] if "/" in name else []),
                "tags: [text-based-person-anomaly-search, text-to-image-retrieval]",
                "---",
                "",
                f"# {recipe.title if recipe else name}",
                "",
                f"`{type(self.model).__name__}`, {total:,} parameters: images of {height} x {width} pixels, texts of "
                f"up to {self.texts.max_tokens} tokens, contrastive loss: {loss}. The terms of `{name}` hold for these "
                "weights too.",
                "",
                *([f"- {recipe.epochs} epochs, {recipe.batch_size} pairs a batch."] if recipe else []),
                *(f"- {note}" for note in notes),
                "",
                "## Loading",
                "",
                "```python",
                "from transformers import AutoModel, AutoProcessor",
                "",
                'model, processor = AutoModel.from_pretrained("FOLDER"), AutoProcessor.from_pretrained("FOLDER")',
                "```",
                "",
            ]
        )


def load_dual(options: DualOptions) -> DualEncoder:
    """The model of a name (from the cache of the hub, or the hub) or folder, on the CPU, in evaluation mode, float32.

    Raises UserError in one line where it is not there, is no dual encoder, has no weights in safetensors, wants code of
    its own, or misses weights.
    """
    import transformers

    name = options.weights
    _quiet()
    config = _loaded(transformers.AutoConfig, name)
    kind = transformers.MODEL_MAPPING.get(type(config), None)
    if kind is None or not all(hasattr(kind, method) for method in _METHODS):
        raise UserError(
            f"hf:{name}: is {_a(config.model_type)} model, which has no {' and no '.join(_METHODS)}; CLIP, SigLIP "
            "and other dual encoders of transformers can be used"
        )
    model, told = _loaded(
        transformers.AutoModel, name, use_safetensors=True, dtype=torch.float32, output_loading_info=True
    )
    lacking = sorted({*told["missing_keys"], *(str(each[0]) for each in told["mismatched_keys"])})
    if lacking:
        raise UserError(f"hf:{name}: its weights miss {lacking[0]} (and {len(lacking) - 1} more)")
    tokenizer = _loaded(transformers.AutoTokenizer, name)
    image_processor = _loaded(transformers.AutoImageProcessor, name)
    return DualEncoder(options, model.eval(), tokenizer, image_processor).eval()


def is_dual_folder(folder: Path) -> bool:
    """Whether a folder's config.json is one of transformers."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model_type" in config


def sigmoid_loss(logits: Tensor, identities: Tensor) -> Tensor:
    """Mean over rows of the sum over columns of -log sigmoid(+logit) for pairs of one identity and (-logit) for others.

    logits: (N, N). identities: int64 (N,).
    """
    signs = 2 * (identities[:, None] == identities[None, :]).to(logits.dtype) - 1
    return -functional.logsigmoid(signs * logits).sum(dim=1).mean()


def max_tokens_of(tokenizer: Any, text_config: Any) -> int:
    """How many tokens a text may have: what the tokenizer says and what the text encoder has positions for."""
    positions = getattr(text_config, "max_position_embeddings", None) or _MOST_TOKENS
    if text_config.model_type in _SHIFTED_POSITIONS:
        positions -= (getattr(text_config, "pad_token_id", None) or 0) + 1
    told = tokenizer.model_max_length or math.inf
    return int(min(told, positions, _MOST_TOKENS))


def _features(found: Any) -> Tensor:
    """The features themselves: older versions of transformers give them, newer ones an output that holds them."""
    features: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return features


def _loaded(kind: Any, name: str, **options: Any) -> Any:
    from safetensors import SafetensorError

    try:
        return kind.from_pretrained(name, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"hf:{name}: cannot be loaded ({one_line(error)}); name a folder of transformers with weights in "
            "safetensors, or a model of the hub"
        ) from None


def _a(word: str) -> str:
    return f"{'an' if word[:1] in 'aeiou' else 'a'} {word}"


def _quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
