"""Networks by their options or out of a saved folder."""

from __future__ import annotations

from pathlib import Path

import torch

from pipeline.core.errors import UserError
from pipeline.models.cmp import CMP
from pipeline.models.config import DualOptions, NetworkOptions
from pipeline.models.dual import DualEncoder, is_dual_folder, load_dual
from pipeline.models.gradco import GradCO
from pipeline.models.lightair import LightAIR
from pipeline.models.network import PairNetwork
from pipeline.models.pretrained import saved_config
from pipeline.models.seda import SeDA

NETWORKS: dict[str, type[PairNetwork]] = {"cmp": CMP, "seda": SeDA, "gradco": GradCO, "lightair": LightAIR}
"""By the name that the options' `model` has."""


AnyNetwork = PairNetwork | DualEncoder
"""Whatever is trained and searched with."""


def build_network(options: NetworkOptions, seed: int) -> PairNetwork:
    """A network with weights drawn from a seed; torch's own generator is left as it was."""
    (network,) = (each for each in NETWORKS.values() if each.options_type is type(options))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network(options)


def load_network(folder: Path) -> AnyNetwork:
    """The network that `save_pretrained` wrote into a folder, whichever it is; UserError where there is none.

    A folder of transformers is a dual encoder.
    """
    model = saved_config(folder).get("model")
    if model is None and is_dual_folder(folder):
        return load_dual(DualOptions(weights=str(folder)))
    if model not in NETWORKS:
        raise UserError(f"{folder}: holds no network known here ({model!r}); there are {', '.join(NETWORKS)}")
    return NETWORKS[model].from_pretrained(folder)
