"""Goes into .venv-vllm as sitecustomize.py: vLLM's CPU build brings a torchvision that its own torch cannot serve.

torchvision describes two operators that are in a compiled part which does not load here; with their signatures declared
it imports, and vLLM needs no more of it. It must be done in every process, for vLLM looks at models in one of its own.
"""

import importlib.abc
import sys

KEPT: list[object] = []


class DeclareOperators(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision" and not KEPT:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            KEPT.append(library)  # its declarations go when it does


sys.meta_path.insert(0, DeclareOperators())
