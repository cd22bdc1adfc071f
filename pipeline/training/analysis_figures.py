"""The figures of a GradCO analysis, and the folder they lie in: a PNG and a JSON for each section, and a summary.

Every maker takes a section of `mechanisms.analyse` and gives a figure; the same section gives the same bytes.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.store import write_atomically
from pipeline.training.analysis import ANGLE_BINS, EDITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Section = Mapping[str, Any]

INDEX = "index.md"
STREAM_INKS = {"appearance": "#3b7a57", "normal": "#2f6db3", "anomalous": "#c0392b"}
_WITH, _WITHOUT, _GREY = "#c0392b", "#7f8c8d", "#555555"
_KIND_INKS = {"normal": "#2f6db3", "anomaly": "#c0392b"}


def write_analysis(folder: Path, found: Mapping[str, Section], about: Mapping[str, str]) -> list[Path]:
    """Write `SECTION.json` and `SECTION.png` for each section and `index.md`. Returns the paths, the summary first.

    about: lines of the summary by name (weights, data). A section that is `missing` has a JSON alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, section in found.items():
        write_atomically(folder / f"{name}.json", (json.dumps(section, indent=1, ensure_ascii=False) + "\n").encode())
        paths.append(folder / f"{name}.json")
        picture = folder / f"{name}.png"
        if "missing" in section:
            picture.unlink(missing_ok=True)
            continue
        write_atomically(picture, png_of(FIGURES[name](section)))
        paths.append(picture)
    write_atomically(folder / INDEX, index_of(found, about).encode())
    return [folder / INDEX, *paths]


def png_of(figure: Figure) -> bytes:
    """The figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


# --- a: anchors over training -----------------------------------------------------------------------------------------


def anchors_figure(section: Section) -> Figure:
    """Lengths of the anchors and their cosine with text - image by epoch and stream; bars where no epoch is known."""
    streams, epochs = section["streams"], section["epochs"]
    if len(epochs) < 2:
        return _anchor_bars(section)
    from matplotlib.ticker import MaxNLocator

    figure = _figure(8.6, 3.3)
    lengths, along = figure.subplots(1, 2)
    numbers = [each["epoch"] for each in epochs]
    for stream in streams:
        ink = STREAM_INKS[stream]
        for kind, style in (("positive", "-"), ("hard", "--")):
            told = f"{stream}{', hard negatives' if kind == 'hard' else ''}"
            lengths.plot(
                numbers, [_value(each[kind][stream]["norm"]) for each in epochs], style, color=ink, label=told,
                marker="o" if kind == "positive" else None, markersize=3,
            )  # fmt: skip
            along.plot(
                numbers, [_value(each[kind][stream]["cosine"]) for each in epochs], style, color=ink,
                marker="o" if kind == "positive" else None, markersize=3,
            )  # fmt: skip
    lengths.set(title="length of the anchors", xlabel="epoch", ylabel="mean |Δ|", ylim=(0, None))
    along.set(title="direction of the anchors", xlabel="epoch", ylabel="mean cos(Δ, t − v)")
    _around_zero(along)
    lengths.legend(fontsize=7.5, frameon=False)
    for axes in (lengths, along):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _plain(axes)
    return figure


def _anchor_bars(section: Section) -> Figure:
    streams = section["streams"]
    kinds = [name for name in ("positive", "hard") if name in section]
    figure = _figure(7.4, 3.1)
    for axes, what, title, label in zip(
        figure.subplots(1, 2),
        ("norm", "cosine"),
        ("length of the anchors", "direction of the anchors"),
        ("mean |Δ|", "mean cos(Δ, t − v)"),
        strict=True,
    ):
        for number, kind in enumerate(kinds):
            values = [_value(section[kind][stream][what]) for stream in streams]
            places = np.arange(len(streams)) + (number - (len(kinds) - 1) / 2) * 0.38
            axes.bar(
                places, values, 0.36, color=[STREAM_INKS[each] for each in streams], alpha=1 if not number else 0.5
            )
        axes.set_xticks(range(len(streams)), streams)
        axes.set(title=title, ylabel=label)
        if what == "cosine":
            _around_zero(axes)
        _plain(axes)
    figure.supxlabel("stream (dark: positive pairs, light: hard negatives)", fontsize=9)
    return figure


def _around_zero(axes: Any) -> None:
    low, high = axes.get_ylim()
    reach = max(abs(low), abs(high), 0.2)
    axes.set_ylim(-reach, reach)
    axes.axhline(0, color=_GREY, linewidth=0.8)


def _value(value: float | None) -> float:
    return math.nan if value is None else value


# --- b: conflicts -----------------------------------------------------------------------------------------------------


def conflicts_figure(section: Section) -> Figure:
    """Histograms of the cosine of the two terms' gradients, with and without anchors, and their share by epoch."""
    epochs = section["epochs"]
    figure = _figure(11.4 if len(epochs) > 1 else 7.8, 3.3)
    places = figure.subplots(1, 3 if len(epochs) > 1 else 2)
    inks = {"with anchors": _WITH, "without anchors": _WITHOUT}
    for axes, what, title in zip(
        places, ("features", "projection"), ("gradients to the text features", "gradients to the text projection"),
        strict=False,
    ):  # fmt: skip
        for name, values in section["cosines"].items():
            known = [each for each in values[what] if each is not None]
            share = section[name][what]["share"]
            told = "" if share is None else f", {100 * share:.0f} % conflict"
            axes.hist(
                known, bins=40, range=(-1, 1), color=inks[name], alpha=0.55, label=f"{name}{told}",
                weights=np.full(len(known), 100 / max(1, len(known))),
            )  # fmt: skip
        axes.axvline(0, color=_GREY, linewidth=0.8)
        axes.set(title=title, xlabel="cos(positive, hard negative)", ylabel="pairs (%)", xlim=(-1, 1))
        # Conflicts crowd at -1: the legend stands where there are none.
        axes.legend(fontsize=7.5, frameon=True, edgecolor="none", facecolor="white", loc="upper right")
        _plain(axes)
    if len(epochs) > 1:
        from matplotlib.ticker import MaxNLocator

        axes = places[2]
        for name, ink in inks.items():
            if all(name in each for each in epochs):
                for what, style in (("features", "-"), ("projection", "--")):
                    means = [_value(each[name][what]["cosine"]) for each in epochs]
                    axes.plot([each["epoch"] for each in epochs], means, style, color=ink, label=f"{name}, {what}")
        axes.axhline(0, color=_GREY, linewidth=0.8)
        axes.set(title="over training", xlabel="epoch", ylabel="mean cosine", ylim=(-1.05, 1.05))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(fontsize=7.5, frameon=False)
        _plain(axes)
    return figure


# --- c: coverage ------------------------------------------------------------------------------------------------------


def coverage_figure(section: Section) -> Figure:
    """Distances of positive pairs, directions of embeddings on the circle, and angles between a text's anchors."""
    anchors = section.get("anchors", {})
    figure = _figure(11.4 if anchors else 7.6, 3.4)
    columns = 3 if anchors else 2
    near = figure.add_subplot(1, columns, 1)
    near.hist(section["distances"], bins=30, color="#4c72b0", alpha=0.85)
    mean = section["positive distance"]["mean"]
    near.axvline(mean, color="black", linestyle="--", linewidth=1, label=f"mean {mean:.3f}")
    near.set(title="distance of positive pairs", xlabel="√(2 − 2 cos)", ylabel="pairs")
    near.legend(fontsize=8, frameon=False)
    _plain(near)
    circle = figure.add_subplot(1, columns, 2, projection="polar")
    centres = (np.arange(ANGLE_BINS) + 0.5) * 2 * math.pi / ANGLE_BINS - math.pi
    for name, ink in (("texts", "#dd8452"), ("images", "#4c72b0")):
        circle.bar(centres, section[name]["circle"], 2 * math.pi / ANGLE_BINS, color=ink, alpha=0.55, label=name)
    circle.set_yticklabels([])
    circle.tick_params(labelsize=7)
    both = section["embeddings"]
    circle.set_title(
        f"directions in the principal plane\nevenness {both['evenness']:.2f}, effective rank "
        f"{both['effective_rank']:.1f}",
        fontsize=10,
    )
    circle.legend(fontsize=7.5, frameon=False, loc="lower left", bbox_to_anchor=(-0.22, -0.14))
    if anchors:
        between = figure.add_subplot(1, 3, 3)
        middles = (np.arange(ANGLE_BINS) + 0.5) * 180 / ANGLE_BINS
        for stream, each in anchors.items():
            told = "all 0" if each["effective_rank"] is None else f"effective rank {each['effective_rank']:.1f}"
            between.plot(
                middles, 100 * np.array(each["angles"]), color=STREAM_INKS[stream],
                label=f"{stream}, {told}",
            )  # fmt: skip
        between.axvline(90, color=_GREY, linewidth=0.8, linestyle=":", zorder=0)
        between.set(title="anchors of one text", xlabel="angle between two (degrees)", ylabel="pairs (%)")
        between.set(xlim=(0, 180), xticks=range(0, 181, 45))
        between.legend(fontsize=7.5, frameon=True, edgecolor="none", facecolor="white", framealpha=0.9)
        _plain(between)
    return figure


# --- d: experts -------------------------------------------------------------------------------------------------------


def experts_figure(section: Section) -> Figure:
    """R@1 of each stream, of equal and of the query's weights; how often a stream agrees; ranks of each query."""
    streams = section["streams"]
    kinds = [each for each in ("all queries", "normal queries", "anomaly queries") if each in section]
    figure = _figure(11.4, 3.5)
    recalls, agreement, ranks = figure.subplots(1, 3)
    bars = [*streams, "even", "fused"]
    inks = [*(STREAM_INKS[each] for each in streams), "#b0a8b9", "#2c3e50"]
    width = 0.84 / len(bars)
    for number, (name, ink) in enumerate(zip(bars, inks, strict=True)):
        values = []
        for kind in kinds:
            own = section[kind]
            values.append(own["streams"][number]["recall"] if number < len(streams) else own[name])
        told = {"even": "equal weights", "fused": "query's weights"}.get(name, name)
        recalls.bar(
            np.arange(len(kinds)) + (number - (len(bars) - 1) / 2) * width, values, width, color=ink, label=told
        )
    recalls.set_xticks(range(len(kinds)), [each.removesuffix(" queries") for each in kinds])
    recalls.set(title="R@1 by similarity alone (%)", xlabel="queries")
    recalls.set_ylim(0, 1.45 * max(recalls.get_ylim()[1], 1e-6))
    recalls.legend(fontsize=7.5, frameon=False, ncols=2, loc="upper left")
    _plain(recalls)
    own = section["all queries"]["streams"]
    for number, (what, told, ink) in enumerate(
        (("agreement", "same first image", "#2c3e50"), ("better", "own image before", "#3b7a57"),
         ("worse", "own image behind", "#c0392b"))
    ):  # fmt: skip
        agreement.bar(
            np.arange(len(streams)) + (number - 1) * 0.27, [each[what] for each in own], 0.26, color=ink, label=told
        )
    agreement.set_xticks(range(len(streams)), streams)
    agreement.set(title="each stream against the fused ranking", xlabel="stream", ylabel="queries (%)", ylim=(0, 128))
    agreement.set_yticks(range(0, 101, 20))
    agreement.legend(fontsize=7.5, frameon=False, ncols=3, loc="upper center", columnspacing=0.8, handlelength=1.2)
    _plain(agreement)
    _rank_curves(ranks, section, streams)
    return figure


def _rank_curves(axes: Any, section: Section, streams: Sequence[str]) -> None:
    """Share of queries whose own image is among the first K, by K."""
    for name in ("fused", *streams):
        values = np.sort(section["ranks"][name])
        found = np.arange(1, len(values) + 1) * 100 / len(values)
        ink = STREAM_INKS.get(name, "#2c3e50")
        told = "query's weights" if name == "fused" else name
        axes.step(values, found, where="post", color=ink, label=told, linewidth=2 if name == "fused" else 1.1)
    axes.set_xscale("log")
    axes.set_xlim(1, max(2, section["images"]))
    axes.set(title="rank of the own image", xlabel="first K images", ylabel="queries (%)", ylim=(0, 101))
    axes.legend(fontsize=7.5, frameon=False, loc="lower right")
    _plain(axes)


# --- e: weights -------------------------------------------------------------------------------------------------------


def weights_figure(section: Section) -> Figure:
    """Weights of the streams by query kind as boxes, and how edits of the words move them."""
    streams, kinds = section["streams"], list(section["queries"])
    edits = [each for each in EDITS if each in section["edits"]]
    figure = _figure(10.6 if edits else 5.2, 3.5)
    places = figure.subplots(1, 3 if edits else 1, squeeze=False)[0]
    axes = places[0]
    for number, kind in enumerate(kinds):
        values = np.array(section["queries"][kind])
        boxes = axes.boxplot(
            [values[:, s] for s in range(len(streams))],
            positions=np.arange(len(streams)) + (number - (len(kinds) - 1) / 2) * 0.36,
            widths=0.3, patch_artist=True, manage_ticks=False, flierprops={"markersize": 2, "alpha": 0.4},
            medianprops={"color": "black"},
        )  # fmt: skip
        for box in boxes["boxes"]:
            box.set(facecolor=_KIND_INKS[kind], alpha=0.65)
        axes.bar([0], [0], color=_KIND_INKS[kind], alpha=0.65, label=f"{kind} queries")
    axes.axhline(1 / len(streams), color=_GREY, linestyle=":", linewidth=0.9, label="equal weights")
    axes.set_xticks(range(len(streams)), streams)
    axes.set(title="weights by query kind", xlabel="stream", ylabel="weight")
    low, high = axes.get_ylim()
    ticks = [each for each in axes.get_yticks() if 0 <= each <= 1]
    axes.set_ylim(low, high + 0.3 * (high - low))
    axes.set_yticks(ticks)
    axes.legend(fontsize=7.5, frameon=False, loc="upper left", ncols=2)
    _plain(axes)
    for axes, what, title in zip(places[1:], ("moved", "signed"), ("size of the shift", "direction of the shift"),
                                 strict=False):  # fmt: skip
        for number, stream in enumerate(streams):
            shifts = [section["edits"][edit]["all"][what][number] for edit in edits]
            axes.bar(
                np.arange(len(edits)) + (number - (len(streams) - 1) / 2) * 0.26, shifts, 0.25,
                color=STREAM_INKS[stream], label=stream,
            )  # fmt: skip
        names = [edit.replace(" ", "\n") + f"\n({section['edits'][edit]['all']['queries']})" for edit in edits]
        axes.set_xticks(range(len(edits)), names, fontsize=8)
        axes.set(title=title, ylabel="mean |change of weight|" if what == "moved" else "mean change of weight")
        if what == "signed":
            axes.axhline(0, color=_GREY, linewidth=0.8)
        else:
            axes.legend(fontsize=7.5, frameon=False)
        _plain(axes)
    return figure


# --- f: hard negatives ------------------------------------------------------------------------------------------------


def hard_negatives_figure(section: Section) -> Figure:
    """Similarities of a few persons' images, and of their captions to them, with the means of all persons above."""
    shown = section["shown"]
    kinds = [each for each in ("images", "text to image") if each in shown]
    count = len(shown["labels"])
    figure = _figure(1.2 + 4.9 * len(kinds), 4.9)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        matrix = np.array(shown[kind])
        off = matrix[~np.eye(count, dtype=bool)] if kind == "images" else matrix
        picture = axes.imshow(matrix, cmap="viridis", vmin=float(off.min()), vmax=float(off.max()))
        middle = (float(off.min()) + float(off.max())) / 2
        for row in range(count):
            for column in range(count):
                value = matrix[row, column]
                axes.text(
                    column, row, f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}",
                    ha="center", va="center", fontsize=max(4.5, 7.5 - count / 8),
                    color="black" if value > middle else "white",
                )  # fmt: skip
        axes.set_xticks(range(count), shown["labels"], rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
        axes.set_yticks(range(count), shown["labels"], fontsize=7)
        for place in _borders(shown["labels"]):
            axes.axhline(place - 0.5, color="white", linewidth=1.6)
            axes.axvline(place - 0.5, color="white", linewidth=1.6)
        axes.set_title(_block_title(kind, section[kind]), fontsize=9.5)
        if kind != "images":
            axes.set(xlabel="image", ylabel="caption")
        figure.colorbar(picture, ax=axes, shrink=0.72, label="similarity")
    return figure


def _block_title(kind: str, blocks: Mapping[str, float]) -> str:
    name = "image to image" if kind == "images" else "caption to image"
    return f"{name}\nall persons: within {blocks['within']:.2f}, across {blocks['across']:.2f}, gap {blocks['gap']:.2f}"


def _borders(labels: Sequence[str]) -> list[int]:
    """Where a new person begins."""
    persons = [each.split()[0] for each in labels]
    return [number for number in range(1, len(persons)) if persons[number] != persons[number - 1]]


FIGURES: dict[str, Callable[[Section], Figure]] = {
    "anchors": anchors_figure,
    "conflicts": conflicts_figure,
    "coverage": coverage_figure,
    "experts": experts_figure,
    "weights": weights_figure,
    "hard_negatives": hard_negatives_figure,
}


# --- the summary ------------------------------------------------------------------------------------------------------


TITLES = {
    "anchors": "Offload anchors",
    "conflicts": "Conflicts of gradients",
    "coverage": "Positive distance and angular coverage",
    "experts": "Each stream alone and all together",
    "weights": "Weights read from the query",
    "hard_negatives": "Similarities of hard negatives",
}


def index_of(found: Mapping[str, Section], about: Mapping[str, str]) -> str:
    """Markdown: what was looked at, one table of the main numbers, and the figures."""
    lines = ["# What goes on inside", ""]
    lines += [f"* {name}: {value}" for name, value in about.items()]
    lines += ["", "| what | value |", "| --- | --- |"]
    lines += [f"| {what} | {value} |" for what, value in summary_of(found)]
    for name, section in found.items():
        lines += ["", f"## {TITLES[name]}", ""]
        if "missing" in section:
            lines.append(f"Not measured: {section['missing']}.")
        else:
            lines.append(f"![{TITLES[name]}]({name}.png)")
        lines += ["", f"Numbers: [{name}.json]({name}.json)"]
    return "\n".join(lines) + "\n"


def summary_of(found: Mapping[str, Section]) -> list[tuple[str, str]]:
    """The main numbers of the sections that are there, each with what it is."""
    rows: list[tuple[str, str]] = []
    sections = {name: each for name, each in found.items() if "missing" not in each}
    if "anchors" in sections:
        own = sections["anchors"]["positive"]
        rows.append(("length of anchors", _by_stream(own, "norm", ".2f")))
        rows.append(("length over that of the text feature", _by_stream(own, "relative", ".2f")))
        rows.append(("cosine of anchor and text − image", _by_stream(own, "cosine", "+.3f")))
    if "conflicts" in sections:
        for name in ("with anchors", "without anchors"):
            each = sections["conflicts"].get(name)
            if each and each["features"]["share"] is not None:
                rows.append(
                    (f"pairs whose gradients conflict, {name}",
                     f"{100 * each['features']['share']:.1f} % (mean cosine {each['features']['cosine']:+.3f}; to the "
                     f"projection {_signed(each['projection']['cosine'])}) of {each['features']['pairs']}")
                )  # fmt: skip
        ratio = sections["conflicts"].get("hard gradient, with over without anchors")
        if ratio is not None:
            rows.append(("hard negatives' gradient to the text, with over without anchors", f"{ratio:.3f}"))
    if "coverage" in sections:
        each = sections["coverage"]
        rows.append(("distance of positive pairs", f"{each['positive distance']['mean']:.3f}"))
        rows.append(
            ("coverage of embeddings", f"evenness {each['embeddings']['evenness']:.3f}, effective rank "
             f"{each['embeddings']['effective_rank']:.1f}, mean direction {each['embeddings']['resultant']:.3f}")
        )  # fmt: skip
        if "anchors" in each:
            rows.append(("effective rank of one text's anchors", _by_stream(each["anchors"], "effective_rank", ".1f")))
    if "experts" in sections:
        each = sections["experts"]["all queries"]
        alone = ", ".join(
            f"{name} {own['recall']:.1f}"
            for name, own in zip(sections["experts"]["streams"], each["streams"], strict=True)
        )
        rows.append(
            ("R@1 by similarity alone", f"query's weights {each['fused']:.1f}, equal weights {each['even']:.1f}, "
             f"{alone}; right by at least one stream {each['any_stream']:.1f}")
        )  # fmt: skip
    if "weights" in sections:
        each = sections["weights"]
        for kind, own in each["by kind"].items():
            told = ", ".join(f"{name} {value['mean']:.3f}" for name, value in zip(each["streams"], own, strict=True))
            rows.append((f"weights of {kind} queries", told))
        for edit, shift in each["edits"].items():
            told = ", ".join(
                f"{name} {moved:.4f} ({signed:+.4f})"
                for name, moved, signed in zip(
                    each["streams"], shift["all"]["moved"], shift["all"]["signed"], strict=True
                )
            )
            rows.append((f"change of weights, {edit}", f"{told}; {shift['all']['queries']} queries"))
    if "hard_negatives" in sections:
        for kind, told in (("images", "image to image"), ("text to image", "caption to image")):
            each = sections["hard_negatives"].get(kind)
            if each:
                rows.append(
                    (f"similarity {told}", f"within a person {each['within']:.3f}, across {each['across']:.3f} (gap "
                     f"{each['gap']:.3f})")
                )  # fmt: skip
    return rows


def _by_stream(values: Mapping[str, Mapping[str, Any]], what: str, form: str) -> str:
    return ", ".join(
        f"{name} {'-' if each[what] is None else format(each[what], form)}" for name, each in values.items()
    )


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"
