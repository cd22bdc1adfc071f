"""Real photographs for trying backends on, where a folder with them lies beside the repository (not part of it)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "real_people"
needs_real_pictures = pytest.mark.skipif(
    not (FOLDER / "keypoints.json").is_file(),
    reason=f"NO REAL PICTURES: {FOLDER.parent.name}/{FOLDER.name} is not beside the repository; nothing real was tried",
)


def load(name: str) -> np.ndarray:
    return np.array(Image.open(FOLDER / name).convert("RGB"))


def annotated(name: str) -> list[np.ndarray]:
    """The picture's people with ten joints or more, (17, 3) with COCO's visibility flags 0, 1, 2."""
    data = json.loads((FOLDER / "keypoints.json").read_text())
    ids = {image["id"] for image in data["images"] if image["file_name"] == name}
    people = [a for a in data["annotations"] if a["image_id"] in ids and a["num_keypoints"] >= 10]
    return [np.array(a["keypoints"], dtype=float).reshape(17, 3) for a in people]


NAMES = ("000000000785.jpg", "000000040083.jpg", "000000196141.jpg", "000000197388.jpg")
