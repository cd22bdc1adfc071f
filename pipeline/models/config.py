"""Everything that decides what a network is and how it is trained, as frozen values; nothing here loads torch.

The defaults are the published methods with the faults of their code mended. `recipes.reproduce` turns a recipe into the
published code as it is, or into the papers' equations where these differ from the code.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

Factor = Literal["appearance", "action", "background"]
FACTORS: tuple[Factor, ...] = ("appearance", "action", "background")
"""The order of the factors everywhere: in features, in losses, in checkpoints."""
Stream = Literal["appearance", "normal", "anomalous"]
STREAMS: tuple[Stream, ...] = ("appearance", "normal", "anomalous")
"""The order of GradCO's streams everywhere."""
Initialisation = Literal["xvlm16m", "aptm", "x2vlm", "none"]
Share = Annotated[float, Field(ge=0, le=1)]


class Options(BaseModel):
    """A group of options: frozen, and a name it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ImageSize(Options):
    """A Swin transformer: `depths` blocks a stage, width `embed_dim` doubled at every stage but the first."""

    kind: Literal["swin"] = "swin"
    image_size: int = Field(default=224, ge=16)
    """Height and width of an image, pixels."""
    patch_size: int = Field(default=4, ge=1)
    embed_dim: int = Field(default=128, ge=1)
    depths: tuple[int, ...] = (2, 2, 18, 2)
    heads: tuple[int, ...] = (4, 8, 16, 32)
    window: int = Field(default=7, ge=2)
    drop_path: Share = 0.1
    """Chance that the last block is skipped for a sample in training; from 0 at the first block, evenly spaced."""

    @model_validator(mode="after")
    def _whole_windows(self) -> ImageSize:
        if len(self.depths) != len(self.heads):
            raise ValueError("depths and heads must have one entry a stage each")
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        side = self.image_size // self.patch_size
        for stage in range(len(self.depths)):
            if side < self.window or side % self.window:
                raise ValueError(f"stage {stage} has a grid of {side}, which is not whole windows of {self.window}")
            if stage + 1 < len(self.depths) and side % 2:
                raise ValueError(f"stage {stage} has an odd grid of {side}")
            side //= 2
        return self

    @property
    def width(self) -> int:
        """Width of an image token."""
        return self.embed_dim * 2 ** (len(self.depths) - 1)

    @property
    def patches(self) -> int:
        """How many patch tokens come out, without the mean token in front of them."""
        return (self.image_size // self.patch_size // 2 ** (len(self.depths) - 1)) ** 2


class BeitSize(Options):
    """A BEiT-v2 transformer, the image side of X2-VLM: a learnt [CLS] inside, relative positions in every block."""

    kind: Literal["beit"] = "beit"
    image_size: int = Field(default=224, ge=16)
    """Height and width of an image, pixels."""
    patch_size: int = Field(default=16, ge=1)
    width: int = Field(default=768, ge=1)
    """Width of an image token."""
    layers: int = Field(default=12, ge=1)
    heads: int = Field(default=12, ge=1)
    ffn_width: int = Field(default=3072, ge=1)
    layer_scale: float = Field(default=0.1, gt=0)
    """Where the learnt scale of each block's two branches starts."""
    drop_path: Share = 0.1
    """Chance that the last block is skipped for a sample in training; from 0 at the first block, evenly spaced."""

    @model_validator(mode="after")
    def _whole_patches(self) -> BeitSize:
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self

    @property
    def patches(self) -> int:
        """How many patch tokens come out, without the mean token in front of them."""
        return (self.image_size // self.patch_size) ** 2


def _image_kind(value: Any) -> str:
    # Networks saved before there were two kinds say nothing; all of them are Swin.
    return str(value.get("kind", "swin") if isinstance(value, dict) else value.kind)


AnyImageSize = Annotated[
    Annotated[ImageSize, Tag("swin")] | Annotated[BeitSize, Tag("beit")], Discriminator(_image_kind)
]


class TextSize(Options):
    """BERT cut in two: `text_layers` read a text alone, `cross_layers` read it together with an image."""

    vocab_size: int = Field(default=30522, ge=1)
    width: int = Field(default=768, ge=1)
    heads: int = Field(default=12, ge=1)
    ffn_width: int = Field(default=3072, ge=1)
    text_layers: int = Field(default=6, ge=1)
    cross_layers: int = Field(default=6, ge=1)
    max_positions: int = Field(default=512, ge=1)
    dropout: Share = 0.1


class Size(Options):
    """How large a network is."""

    name: str = "paper"
    image: AnyImageSize = ImageSize()
    text: TextSize = TextSize()
    pose_heads: int = Field(default=16, ge=1)
    feature_width: int = Field(default=2048, ge=1)
    """Width of the features that retrieval compares."""
    max_tokens: int = Field(default=56, ge=3)
    """Tokens of a text with [CLS] and [SEP]; published weights need 56, since padding enters the text feature."""


SIZES: dict[str, Size] = {
    each.name: each
    for each in (
        Size(name="paper"),
        Size(
            name="small",
            image=ImageSize(
                image_size=128, patch_size=8, embed_dim=32, depths=(1, 2, 1), heads=(2, 4, 8), window=4, drop_path=0.0
            ),
            text=TextSize(width=96, heads=4, ffn_width=384, text_layers=2, cross_layers=1, dropout=0.0),
            pose_heads=4,
            feature_width=256,
        ),
        Size(
            name="tiny",
            image=ImageSize(embed_dim=8, depths=(2, 2, 2, 2), heads=(1, 2, 4, 8)),
            text=TextSize(width=48, heads=4, ffn_width=192),
            pose_heads=4,
            feature_width=128,
        ),
        Size(
            name="x2vlm",
            image=BeitSize(),
            text=TextSize(text_layers=12, cross_layers=6),
            pose_heads=12,
            feature_width=256,
            max_tokens=77,
        ),
        Size(
            name="x2vlm-small",
            # Patches as fine as in `small`; of 16 pixels they learn half as fast from nothing.
            image=BeitSize(image_size=96, patch_size=8, width=64, layers=3, heads=4, ffn_width=256, drop_path=0.0),
            text=TextSize(width=96, heads=4, ffn_width=384, text_layers=2, cross_layers=1, dropout=0.0),
            pose_heads=4,
            feature_width=64,
        ),
        Size(
            name="x2vlm-tiny",
            image=BeitSize(image_size=64, width=48, layers=2, heads=4, ffn_width=192),
            text=TextSize(width=48, heads=4, ffn_width=192, text_layers=2, cross_layers=2),
            pose_heads=4,
            feature_width=32,
            max_tokens=40,
        ),
    )
}
"""`paper` is Swin-B with BERT-base (CMP, section 5), `small` trains on a CPU, `tiny` is for tests; `x2vlm` is BEiT-v2
base with an 18-layer BERT (X2-VLM base, the encoders of LightAIR and GradCO), and so are its small and tiny forms."""


class MaskingOptions(Options):
    """Which tokens of a caption masked language modelling hides, and what predicts them."""

    mask_pad: bool = False
    """Whether [PAD] and [SEP] may be hidden and are counted, as the published code does."""
    mask_prob: Share = 0.25
    max_masks: int | None = Field(default=10, ge=1)
    """At most so many positions a caption; None: no bound but `mask_prob`."""
    skipgram_prob: Share = 0.2
    skipgram_size: int = Field(default=3, ge=2)
    whole_word: bool = True
    tie: bool = True
    """Whether the decoder is the word embedding. The published SeDA code unties the two when it loads weights."""


class NetworkOptions(Options):
    """What CMP and SeDA share: encoders, pose encoding (`pose`), hard negatives (`ihnm`), three losses."""

    size: Size = Size()
    pose: bool = True
    """Whether the pose map is encoded and fused into the image tokens (the paper's PE)."""
    pose_conv: bool = True
    """Whether two convolutions stand before the pose encoder; they are in the published code, not in the paper."""
    pool: Literal["p3", "avg_cls"] = "p3"
    """`p3`: three overlapping means over the tokens; `avg_cls`: mean and [CLS] (CMP, equation 4)."""
    projection_dropout: Share = 0.5
    temperature: float = Field(default=0.07, gt=0)
    """Where the learnt temperature starts; published initial weights bring their own."""
    label_smooth: Share = 0.2
    eda_weight: float = Field(default=0.8, ge=0)
    """Weight of the losses over the augmented caption; 0 leaves them out."""
    ihnm: Literal["extra", "replace", "off"] = "extra"
    """Hard pairs as a term of their own, or in place of the in-batch negatives, or not at all."""
    mlm: MaskingOptions = MaskingOptions()
    gather_gradients: Literal["summed", "local"] = "summed"
    """`local`: gradients of the contrastive loss stay with the process that computed them, as in the published code."""


class CmpOptions(NetworkOptions):
    """CMP."""

    model: Literal["cmp"] = "cmp"


class StpOptions(Options):
    """Semantic token projection: how factor queries gather tokens (SeDA, section STP)."""

    weighting: Literal["sigmoid", "softmax", "cross_attention"] = "sigmoid"
    mask_pad: bool = False
    """Whether padding is kept out of the sum over text tokens."""
    bn_on_subcaptions: bool = False
    """Whether caption parts also enter the running statistics of the text projection, as in the published code."""


class FactorLossOptions(Options):
    """The loss that ties each factor to the caption part it should hold (SeDA, L_FD)."""

    enabled: bool = True
    form: Literal["clip", "infonce_anchor"] = "clip"
    """`clip`: as the contrastive loss of CMP; `infonce_anchor`: one direction, from the anchor (SeDA's equation)."""
    tau: float = Field(default=0.07, gt=0)
    """Temperature of `infonce_anchor`."""


class FactorMatchingOptions(Options):
    """Matching of an image with each part of its caption (SeDA, L_ITM-sem)."""

    enabled: bool = True
    mine: Literal["full_caption_factor", "anchor"] = "full_caption_factor"
    """Whose similarity to the image's factor chooses negatives: the whole caption's factor or the caption part's."""


class SedaOptions(NetworkOptions):
    """SeDA: CMP with features made of factors, and two losses over caption parts."""

    model: Literal["seda"] = "seda"
    stp: StpOptions = StpOptions()
    fd: FactorLossOptions = FactorLossOptions()
    itm_sem: FactorMatchingOptions = FactorMatchingOptions()
    factors: tuple[Factor, ...] = FACTORS

    @model_validator(mode="after")
    def _factors_in_order(self) -> SedaOptions:
        if not self.factors or self.factors != tuple(each for each in FACTORS if each in self.factors):
            raise ValueError(f"factors must be some of {', '.join(FACTORS)}, in this order, each once")
        return self


class ExpertOptions(Options):
    """GradCO's mixture of experts: one stream each for appearance, normal and anomalous behaviour (B-MoE)."""

    streams: tuple[Stream, ...] = STREAMS
    image_experts: bool = True
    text_experts: bool = True
    """Without experts a modality's tokens enter every stream as they are."""
    experts: int = Field(default=4, ge=1)
    """Sub-experts of a stream (the paper's K)."""
    hidden: int = Field(default=384, ge=1)
    routing: Literal["soft", "top1"] = "soft"
    tau: float = Field(default=1.0, gt=0)
    """Temperature of the router."""
    proj: Literal["shared", "per_stream"] = "shared"
    load_balance: float = Field(default=0.0, ge=0)
    """Weight of the divergence of the mean routing from an even one."""

    @model_validator(mode="after")
    def _streams_in_order(self) -> ExpertOptions:
        if not self.streams or self.streams != tuple(each for each in STREAMS if each in self.streams):
            raise ValueError(f"streams must be some of {', '.join(STREAMS)}, in this order, each once")
        return self


class OffloadOptions(Options):
    """GradCO's offload anchors: a vector for each pair and stream that takes up conflicting gradients (COL)."""

    anchors: bool = True
    form: Literal["add_text", "add_image", "add_scaled"] = "add_text"
    """What the anchor is added to; `add_scaled`: to the text feature, times a learnt number."""
    norm_inputs: bool = True
    """Whether the anchor is made of features of length 1."""
    use_hard: bool = True
    """Whether hard pairs are further rows and columns of the similarity."""
    stop_text_on_hard: bool = False
    """Whether pairs of one person with other behaviour leave the text feature alone: only the anchor learns."""
    gamma: float = Field(default=0.5, ge=0)
    """Weight of the direction-diversity regulariser; 0 leaves it out."""
    dir_form: Literal["hinge", "square", "raw"] = "hinge"
    chunk: int = Field(default=8, ge=1)
    """Texts whose anchors are held at once."""


class IntentOptions(Options):
    """GradCO's weights of the streams, read from the query (HIA)."""

    similarity: bool = True
    """Whether the streams' similarities are weighted together; else the whole texts and images are compared."""
    feature: bool = True
    """Whether the streams' tokens are weighted together for matching; else matching reads the encoders' tokens."""
    matching: bool = True
    """Whether there is a matching loss and a matching score."""
    intent: bool = True
    """Whether the weights depend on the query; else each stream counts alike."""
    contrast: bool = True
    """Whether there is a contrastive loss."""
    tau: float = Field(default=1.0, gt=0)


class GradcoOptions(NetworkOptions):
    """GradCO: expert streams, offload anchors, and weights read from the query, on X2-VLM's encoders."""

    model: Literal["gradco"] = "gradco"
    size: Size = SIZES["x2vlm"]
    pose: bool = False
    pose_conv: bool = False
    label_smooth: Share = 0.0
    mlm_weight: float = Field(default=0.0, ge=0)
    """Weight of masked language modelling; 0 leaves it out."""
    bmoe: ExpertOptions = ExpertOptions()
    col: OffloadOptions = OffloadOptions()
    hia: IntentOptions = IntentOptions()

    @model_validator(mode="after")
    def _something_is_learnt(self) -> GradcoOptions:
        hia = self.hia
        reads_streams = hia.feature and hia.matching
        if not reads_streams and not (hia.similarity and hia.contrast):
            raise ValueError(
                "no loss would reach the streams: hia wants similarity and contrast, or feature and matching"
            )
        if not hia.similarity and self.bmoe.proj == "per_stream":
            raise ValueError("hia.similarity false compares whole texts and images, which bmoe.proj per_stream cannot")
        return self


class CodebookOptions(Options):
    """LightAIR's codebook of action phrases, and how an image is told in it."""

    phrases: tuple[str, ...] = ()
    """Action and anomaly phrases; read off the training data where none are given."""
    top_k: int = Field(default=3, ge=1)
    """Phrases that an image is told with."""
    action_temp: float = Field(default=0.1, gt=0)
    entropy_tau: float = Field(default=1.0, gt=0)
    projection_epsilon: float = Field(default=1e-6, gt=0)
    input: Literal["projected", "raw"] = "projected"
    """What phrases are told from: the projected feature or the image encoder's own."""
    rectify: Literal["detach_pi", "detach_projection", "none"] = "detach_pi"
    """What the gradient of the appearance part leaves out (`detach_pi`: the paper, `detach_projection`: the code)."""
    eval_mode: bool = True
    """Whether phrases are encoded without dropout; the published code encodes them with it."""
    refresh_epochs: int = Field(default=0, ge=0)
    """Epochs after which the phrases are encoded anew; 0: never."""
    target: Literal["query", "codebook"] = "query"
    """What the action part should be like: the caption's feature or the phrase's."""


class LightairOptions(NetworkOptions):
    """LightAIR: the action of an image told in a codebook and taken out of its appearance, on X2-VLM's encoders."""

    model: Literal["lightair"] = "lightair"
    size: Size = SIZES["x2vlm"]
    pose: bool = False
    pose_conv: bool = False
    label_smooth: Share = 0.0
    mlm: MaskingOptions = MaskingOptions(mask_prob=0.4, max_masks=12)
    mlm_weight: float = Field(default=0.0, ge=0)
    """Weight of masked language modelling; 0 leaves it out, as the published code does for PAB."""
    itm_weight: float = Field(default=4.0, ge=0)
    cls_weight: float = Field(default=1.0, ge=0)
    """Weight of the loss that ties the action part to the caption."""
    codebook: CodebookOptions = CodebookOptions()


class DualOptions(Options):
    """Somebody else's dual encoder (CLIP, SigLIP and their like), which ranks by similarity alone.

    Of what the networks of this project do beside that, it does nothing, and says so to whoever asks.
    """

    model: Literal["dual"] = "dual"
    weights: str
    """The name of a model of the hub, or a folder."""
    label_smooth: Share = 0.0
    """Of the softmax form of the contrastive loss."""
    gather_gradients: Literal["summed", "local"] = "summed"
    pose: Literal[False] = False
    ihnm: Literal["off"] = "off"
    eda_weight: Literal[0] = 0


ModelOptions = Annotated[
    CmpOptions | SedaOptions | GradcoOptions | LightairOptions | DualOptions, Field(discriminator="model")
]


class OptimiserOptions(Options):
    """AdamW and how its learning rate runs, a factor for each step."""

    lr: float = Field(default=1e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = Field(default=0.01, ge=0)
    lr_multiple: float = Field(default=2.0, gt=0)
    """Of the parts near the losses: the last stages and layers, heads, projections and what is new."""
    schedule: Literal["step", "linear", "linear_floor"] = "step"
    warmup: float = Field(default=500, ge=0)
    """Steps; below 1 a share of all steps."""
    lr_end: float = Field(default=1e-5, ge=0)
    """Where `linear_floor` ends."""


class AugmentationOptions(Options):
    """What training does to pictures and captions."""

    flip_prob: Share = 0.5
    shared_flip: bool = True
    """Image and pose map share one draw."""
    erase_prob: Share = 0.6
    erase_area: tuple[float, float] = (0.02, 0.4)
    erase_aspect: float = Field(default=0.3, gt=0, le=1)
    """Height over width between this and its inverse."""
    erase_pose: bool = False
    independent: bool = False
    """Image, pose, hard image and hard pose each draw for themselves, erasing included, as in the published code."""
    eda_prob: Share = 1.0
    swap_sides: bool = True
    """A flipped picture swaps left and right in its caption, the parts and the augmented caption."""


class EvaluationOptions(Options):
    """How retrieval and matching scores become one ranking."""

    top_k: int = Field(default=128, ge=1)
    """How many images of a query the matching head scores."""
    fusion: Literal["single", "itm_only", "linear", "ref_world", "similarity"] = "single"
    itc_weight: float = Field(default=0.002, ge=0)
    ref_world: int = Field(default=1, ge=1)
    """Processes of the published evaluation that `ref_world` imitates: their number changes its scores."""


class PaperRow(Options):
    """A row of a published table. Generations 1 and 2 of CMP start from different weights: never in one table.

    Percent; None where the source does not say.
    """

    generation: Literal[1, 2]
    train_pairs: Literal["0.1M", "1M"]
    r1: float
    r5: float | None = None
    r10: float | None = None
    map: float | None = None
    note: str = ""


class Recipe(Options):
    """A named experiment: the network, how it is trained and evaluated, and the published row it stands for."""

    name: str
    title: str
    model: ModelOptions
    optimiser: OptimiserOptions = OptimiserOptions()
    augmentation: AugmentationOptions = AugmentationOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    batch_size: int = Field(default=22, ge=2)
    """Pairs a process and step."""
    epochs: int = Field(default=30, ge=1)
    init: Initialisation = "xvlm16m"
    rows: tuple[PaperRow, ...] = ()
