"""What an evaluation leaves behind: figures as JSON, rankings as Parquet, and pictures for whom tables tire."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.seeds import seed_of
from pipeline.core.sheet import text_font
from pipeline.core.store import parquet_bytes, write_atomically
from pipeline.core.text import words_of
from pipeline.retrieval.metrics import Metrics
from pipeline.retrieval.protocols import AVERAGED
from pipeline.training.evaluate import Evaluation, Ranking
from pipeline.training.samples import Factors, Sample, SampleSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image, ImageDraw

METRICS, RANKINGS, PAGE, CURVES = "metrics.json", "rankings.parquet", "examples.png", "curves.png"

_PAGE_QUERIES = 8
_PAGE_IMAGES = 5
_SIDE, _GAP, _MARGIN, _FRAME = 150, 10, 16, 5
_FACTOR_INK = {"appearance": (30, 130, 50), "action": (190, 40, 40), "background": (210, 120, 20)}
_RIGHT, _SAME_PERSON, _WRONG, _UNKNOWN = (40, 160, 60), (50, 90, 210), (200, 50, 50), (150, 150, 150)


def metrics_of(found: Evaluation) -> dict[str, Any]:
    """The figures as plain values: percent by protocol, pair accuracy with its 95 % interval, and how it was done."""
    protocols = {
        name: mean_of([each]) | ({"Avg": round(average_of(each), 4)} if name in AVERAGED else {})
        for name, each in found.metrics.items()
    }
    pairs: dict[str, Any] = {"queries": found.pairs.queries}
    if found.pairs.queries:
        low, high = found.pairs.interval
        pairs |= {
            "percent": round(100 * found.pairs.share, 4),
            "95 % interval": [round(100 * low, 4), round(100 * high, 4)],
        }
    return {
        "protocols": protocols,
        "pair accuracy": pairs,
        "fusion": found.fusion,
        "candidates": found.top_k,
        **found.counts,
        "unreadable": [f"{name}: {why}" for name, why in found.unreadable],
    }


def mean_of(several: Sequence[Metrics]) -> dict[str, Any]:
    """The figures as plain values: percent, the mean of several galleries; queries are those of all of them."""

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / len(values), 4)

    return {
        **{f"R@{k}": mean([each.recall[k] for each in several]) for k in several[0].recall},
        "mAP": mean([each.mean_ap for each in several]),
        "mINP": mean([each.mean_inp for each in several]),
        "queries": sum(each.queries for each in several),
        "queries without a relevant image": sum(each.without_relevant for each in several),
    }


def average_of(each: Metrics) -> float:
    """The mean of R@1, R@5 and R@10: UCC-Avg, and R-Avg of the TIPR sets."""
    return sum(each.recall.values()) / len(each.recall)


def weather_of(found: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The figures of each condition and their mean: R@1 and mAP in percent."""
    from pipeline.retrieval.protocols import BEHAVIOUR

    rows = {name: each.metrics[BEHAVIOUR] for name, each in found.items()}
    told = {name: {"R@1": each.recall[1], "mAP": each.mean_ap, "queries": each.queries} for name, each in rows.items()}
    mean = {key: sum(each[key] for each in told.values()) / len(told) for key in ("R@1", "mAP")}
    return {
        name: {key: round(value, 4) for key, value in each.items()} for name, each in {**told, "mean": mean}.items()
    }


def format_weather(told: Mapping[str, Mapping[str, float]]) -> str:
    """`weather_of` as a table, a condition a line."""
    lines = [f"{'Multi-Weather':<14}  {'R@1':>6}  {'mAP':>6}"]
    lines += [f"{name:<14}  {each['R@1']:6.2f}  {each['mAP']:6.2f}" for name, each in told.items()]
    return "\n".join(lines)


def write_results(folder: Path, found: Evaluation, data: SampleSet, about: Mapping[str, Any]) -> list[Path]:
    """Write metrics, rankings and the page of examples into a folder. Returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**about, **metrics_of(found)}, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / METRICS, text.encode())
    write_atomically(folder / RANKINGS, parquet_bytes(_rankings(found)))
    write_atomically(folder / PAGE, _png(examples_page(found, data)))
    return [folder / METRICS, folder / RANKINGS, folder / PAGE]


def _rankings(found: Evaluation) -> Any:
    import pyarrow as pa

    rows = [
        {"query": each.query.id, "rank": rank, "id": found.gallery[image].id, "score": score}
        for each in found.rankings
        for rank, (image, score) in enumerate(zip(each.images, each.scores, strict=True), 1)
    ]
    schema = pa.schema([("query", pa.string()), ("rank", pa.int64()), ("id", pa.string()), ("score", pa.float64())])
    return pa.Table.from_pylist(rows, schema=schema)


def format_metrics(found: Evaluation) -> str:
    """The figures as a table, a protocol a line, and a line on pairs."""
    head = ("protocol", "R@1", "R@5", "R@10", "mAP", "mINP", "queries")
    lines: list[tuple[str, ...]] = [head]
    for name, each in found.metrics.items():
        values = [*each.recall.values(), each.mean_ap, each.mean_inp]
        lines.append((name, *("-" if math.isnan(value) else f"{value:.2f}" for value in values), str(each.queries)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    table = "\n".join(
        "  ".join(text.ljust(width) if column == 0 else text.rjust(width)
                  for column, (text, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )  # fmt: skip
    notes = []
    if found.pairs.queries:
        low, high = found.pairs.interval
        notes.append(
            f"pair accuracy {100 * found.pairs.share:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) of "
            f"{found.pairs.queries} queries; chance 50 %"
        )
    chance = 100 / max(1, found.counts["gallery"])
    matched = f"first {found.top_k} matched" if found.top_k else "nothing matched"
    notes.append(
        f"gallery {found.counts['gallery']} images (chance R@1 {chance:.2f} %), {matched}, fusion {found.fusion}"
    )
    notes += [
        f"{name}: mean of R@1, R@5 and R@10 {average_of(each):.2f}"
        for name, each in found.metrics.items()
        if name in AVERAGED
    ]
    left_out = sum(each.without_relevant for each in found.metrics.values())
    if left_out or found.counts["left out"]:
        notes.append(f"left out: {found.counts['left out']} images, {left_out} queries without a relevant image")
    return "\n".join([table, *notes])


# --- pictures -----------------------------------------------------------------------------------------------------


def examples_page(found: Evaluation, data: SampleSet) -> Image.Image:
    """Queries with their factors' words in colour, and the first images each found, framed by what they are.

    Green: right; blue: the same person with another behaviour; red: wrong (the manner of PAB, figure 5). Which queries,
    their ids decide.
    """
    from PIL import Image, ImageDraw

    shown = sorted(found.rankings, key=lambda each: seed_of("examples", each.query.id))[:_PAGE_QUERIES]
    text_width = 360
    row = _SIDE + 2 * _FRAME + _GAP + 18
    width = 2 * _MARGIN + text_width + _PAGE_IMAGES * (_SIDE + 2 * _FRAME + _GAP)
    page = Image.new("RGB", (width, 2 * _MARGIN + 44 + row * len(shown)), (250, 250, 248))
    draw = ImageDraw.Draw(page)
    _legend(draw)
    for number, ranking in enumerate(shown):
        top = _MARGIN + 44 + number * row
        own = None if ranking.query.image is None else found.gallery[ranking.query.image]
        _query(draw, own.factors if own else (None, None, None), ranking.query.text, top, text_width)
        for place, (index, score) in enumerate(zip(ranking.images[:_PAGE_IMAGES], ranking.scores, strict=False)):
            left = _MARGIN + text_width + place * (_SIDE + 2 * _FRAME + _GAP)
            sample = found.gallery[index]
            colour = _frame(found, ranking, index)
            draw.rectangle((left, top, left + _SIDE + 2 * _FRAME - 1, top + _SIDE + 2 * _FRAME - 1), fill=colour)
            page.paste(_picture(data, sample), (left + _FRAME, top + _FRAME))
            draw.text((left, top + _SIDE + 2 * _FRAME + 1), f"{score:.3f}", fill=(95, 95, 105), font=text_font(12))
    return page


def _legend(draw: ImageDraw.ImageDraw) -> None:
    left = _MARGIN
    for text, ink in (
        ("query: ", (25, 25, 28)),
        ("appearance ", _FACTOR_INK["appearance"]),
        ("action ", _FACTOR_INK["action"]),
        ("background    ", _FACTOR_INK["background"]),
        ("first five images, frames: ", (25, 25, 28)),
        ("right ", _RIGHT),
        ("same person, other behaviour ", _SAME_PERSON),
        ("wrong", _WRONG),
    ):
        draw.text((left, _MARGIN), text, fill=ink, font=text_font(15))
        left += round(text_font(15).getlength(text))


def _query(draw: ImageDraw.ImageDraw, factors: Factors, text: str, top: int, width: int) -> None:
    """The query's words, each in the colour of the factor that has it."""
    owners: dict[str, str] = {}
    for name, part in zip(_FACTOR_INK, factors, strict=True):
        for word in words_of(part or ""):
            owners.setdefault(word, name)
    font = text_font(13)
    left, line = _MARGIN, top
    for word in text.split():
        length = round(font.getlength(f"{word} "))
        if left + length > _MARGIN + width - 12:
            left, line = _MARGIN, line + 17
            if line > top + _SIDE:
                return
        owner = owners.get(word)
        draw.text((left, line), word, fill=_FACTOR_INK[owner] if owner else (95, 95, 105), font=font)
        left += length


def _frame(found: Evaluation, ranking: Ranking, index: int) -> tuple[int, int, int]:
    shown = found.gallery[index]
    if ranking.query.image is None:
        if ranking.query.right is None:
            return _UNKNOWN
        return _RIGHT if shown.id in ranking.query.right else _WRONG
    own = found.gallery[ranking.query.image]
    if shown.match == own.match:
        return _RIGHT
    return _SAME_PERSON if own.person is not None and shown.person == own.person else _WRONG


def _picture(data: SampleSet, sample: Sample) -> Image.Image:
    from PIL import Image

    from pipeline.core.images import read_image

    image = Image.fromarray(read_image(data.picture(sample.image, "image"), sample.id, least_side=_SIDE))
    image.thumbnail((_SIDE, _SIDE))
    square = Image.new("RGB", (_SIDE, _SIDE), (230, 230, 228))
    square.paste(image, ((_SIDE - image.width) // 2, (_SIDE - image.height) // 2))
    return square


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write_curves(folder: Path, log: Sequence[Mapping[str, Any]]) -> Path | None:
    """Losses and validation figures by epoch as a PNG. Returns the path; None where there is no epoch."""
    if not log:
        return None
    buffer = io.BytesIO()
    curves_figure(log).savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_atomically(folder / CURVES, buffer.getvalue())
    return folder / CURVES


def curves_figure(log: Sequence[Mapping[str, Any]]) -> Figure:
    """The losses and, beside them, the validation figures of the log's epochs, counted from 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    losses, measures = figure.subplots(1, 2)
    epochs = [line["epoch"] + 1 for line in log]
    for name in sorted({key for line in log for key in line if key.startswith("loss_")}):
        losses.plot(epochs, [line.get(name) for line in log], marker=".", label=name.removeprefix("loss_"))
    losses.set(title="loss (mean of an epoch)", xlabel="epoch")
    losses.legend()
    for name in ("validation_R@1", "validation_mAP", "validation_pair accuracy"):
        values = [line.get(name, math.nan) for line in log]
        if not all(math.isnan(value) for value in values):
            measures.plot(epochs, values, marker=".", label=name.removeprefix("validation_"))
    measures.set(title="validation (%)", xlabel="epoch", ylim=(0, 100))
    if measures.lines:
        measures.legend()
    for axes in (losses, measures):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # no epoch ends between two
    return figure
