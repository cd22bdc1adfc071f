"""How a stage reads what earlier stages wrote of an image: the two branches differ only in which stage that was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.core.images import read_image
from pipeline.core.stage import Ref, StageContext, shard_kind


def image_stage(shard: str) -> str:
    """The stage that wrote a shard's images: generate for train, frames for test."""
    return "generate" if shard_kind(shard) == "train" else "frames"


def filtered_stage(shard: str) -> str:
    """The stage whose kept records are those that passed all filters: keypoints for train, similarity for test."""
    return "keypoints" if shard_kind(shard) == "train" else "similarity"


def filtered_items(context: StageContext) -> list[Ref]:
    """The images of the shard that passed all filters."""
    return [Ref(record_id) for record_id in context.store.kept_ids(filtered_stage(context.shard), context.shard)]


def image_rows(context: StageContext, ids: Sequence[str], columns: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The rows of these images by id: `pixels`, the decoded uint8 (H, W, 3) image, and the columns asked for."""
    rows = context.store.rows(image_stage(context.shard), context.shard, ["image", *columns], ids)
    for record_id, row in rows.items():
        row["pixels"] = read_image(row.pop("image"), record_id)
    return rows


def person_rows(context: StageContext, ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The people the keypoints stage found in these images, by id, as rows of `PersonKeypoints`."""
    rows = context.store.rows("keypoints", context.shard, ["persons"], ids)
    return {record_id: row["persons"] for record_id, row in rows.items()}
