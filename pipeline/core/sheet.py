"""Pages for a person to look at: contact sheets of pictures with their pose maps and captions, and histograms."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont
    from PIL.ImageFont import ImageFont as BitmapFont

INK, SOFT_INK, PAPER = (25, 25, 28), (95, 95, 105), (250, 250, 248)
_MARGIN = 10
_GAP = 4
_FONT_SIZE = 14
_LINE_HEIGHT = 18
_TITLE_SIZE = 22


@functools.cache
def text_font(size: int) -> FreeTypeFont | BitmapFont:
    """DejaVu Sans out of matplotlib's files, where that is installed, for titles in many alphabets; else Pillow's own,
    which has none but plain Latin letters.
    """
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin is not None:
        path = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if path.is_file():
            return ImageFont.truetype(str(path), round(size * 0.9))
    return ImageFont.load_default(size=size)


@dataclass(frozen=True)
class Cell:
    """One picture of a sheet. picture None: the cell has text only. heading is drawn dark, lines below it softer."""

    picture: Image.Image | None
    heading: str = ""
    lines: tuple[str, ...] = ()
    pose: Image.Image | None = None


def contact_sheet(
    cells: Sequence[Cell | None], columns: int, cell_size: int, title: str, text_lines: int = 6
) -> Image.Image:
    """The cells in rows of `columns` under a title; None leaves its place empty.

    cell_size: pixels of the square that a picture (and beside it a pose map) is fitted into, whole and unstretched.
    text_lines: lines of text below a picture at most; what does not fit ends in "...". A row is as high as what is in
    it. The same cells give the same pixels.
    """
    if columns < 1 or cell_size < 16 or text_lines < 0:
        raise ValueError("a sheet needs at least one column and cells of 16 pixels")
    with_pose = any(cell is not None and cell.pose is not None for cell in cells)
    width = cell_size * 2 + _GAP if with_pose else cell_size
    texts = [_text(cell, width, text_lines) if cell is not None else [] for cell in cells]
    rows = [range(start, min(start + columns, len(cells))) for start in range(0, len(cells), columns)]
    heights = [max(_height(cells[index], texts[index], cell_size) for index in row) for row in rows]
    across = _MARGIN + columns * (width + _MARGIN)
    titles = wrapped(title, across - 2 * _MARGIN, text_font(_TITLE_SIZE)) or [""]
    top = len(titles) * _TITLE_SIZE + (len(titles) - 1) * _GAP + 2 * _MARGIN
    sheet = Image.new("RGB", (across, top + sum(height + _MARGIN for height in heights)), PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, line in enumerate(titles):
        draw.text((_MARGIN, _MARGIN + number * (_TITLE_SIZE + _GAP)), line, fill=INK, font=text_font(_TITLE_SIZE))
    for row, height in zip(rows, heights, strict=True):
        for column, index in enumerate(row):
            cell = cells[index]
            if cell is not None:
                _draw_cell(sheet, cell, texts[index], _MARGIN + column * (width + _MARGIN), top, cell_size)
        top += height + _MARGIN
    return sheet


def stacked(sheets: Sequence[Image.Image]) -> Image.Image:
    """Sheets one below the other, left edges together. Raises ValueError for none."""
    if not sheets:
        raise ValueError("there is no sheet to stack")
    page = Image.new("RGB", (max(sheet.width for sheet in sheets), sum(sheet.height for sheet in sheets)), PAPER)
    top = 0
    for sheet in sheets:
        page.paste(sheet, (0, top))
        top += sheet.height
    return page


def fitted(picture: Image.Image, side: int) -> Image.Image:
    """The picture as large as fits into a square of `side` pixels, its shape kept."""
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def wrapped(text: str, width: int, font: FreeTypeFont | BitmapFont) -> list[str]:
    """The text in lines of at most `width` pixels, broken between words, or within a word that alone is too long."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if font.getlength(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while font.getlength(word) > width and len(word) > 1:
            cut = next(end for end in range(len(word) - 1, 0, -1) if end == 1 or font.getlength(word[:end]) <= width)
            lines.append(word[:cut])
            word = word[cut:]
        line = word
    return [*lines, line] if line else lines


def _text(cell: Cell, width: int, text_lines: int) -> list[tuple[str, tuple[int, int, int]]]:
    """The lines of a cell with their colours, cut to what it has room for."""
    font = text_font(_FONT_SIZE)
    lines = [(line, INK) for line in wrapped(cell.heading, width, font)]
    for text in cell.lines:
        lines += [(line, SOFT_INK) for line in wrapped(text, width, font)]
    if len(lines) > text_lines:
        lines = lines[:text_lines]
        if lines:
            last, ink = lines[-1]
            while last and font.getlength(f"{last}...") > width:
                last = last[:-1]
            lines[-1] = (f"{last.rstrip()}...", ink)
    return lines


def _height(cell: Cell | None, text: Sequence[object], cell_size: int) -> int:
    picture = cell_size + _GAP if cell is not None and cell.picture is not None else 0
    return picture + len(text) * _LINE_HEIGHT


def _draw_cell(
    sheet: Image.Image,
    cell: Cell,
    text: Sequence[tuple[str, tuple[int, int, int]]],
    left: int,
    top: int,
    cell_size: int,
) -> None:
    for offset, picture in ((0, cell.picture), (cell_size + _GAP, cell.pose)):
        if picture is not None:
            small = fitted(picture, cell_size)
            sheet.paste(small, (left + offset, top + (cell_size - small.height) // 2))
    draw, font = ImageDraw.Draw(sheet), text_font(_FONT_SIZE)
    text_top = top + _height(cell, (), cell_size)
    for number, (line, ink) in enumerate(text):
        draw.text((left, text_top + number * _LINE_HEIGHT), line, fill=ink, font=font)


# --- histograms ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """One row of a histogram: a name and its values. good: whether they are of what should lie on the kept side; None
    where that is not known. without: how many more have no value.
    """

    name: str
    values: tuple[float, ...]
    good: bool | None = None
    without: int = 0


@dataclass(frozen=True)
class Mark:
    """A line across a histogram: at which value, and what it says. dashed lines are proposals."""

    value: float
    label: str
    dashed: bool = False


_BARS = {True: (62, 125, 90), False: (190, 84, 60), None: (88, 104, 140)}
_DROPPED_SIDE = (243, 232, 228)
_PRESENT, _PROPOSED = (25, 25, 28), (150, 30, 150)
_PLOT_WIDTH, _ROW_HEIGHT, _LEFT, _RIGHT = 820, 110, 150, 40
_BINS = 60


def histogram(
    series: Sequence[Series],
    marks: Sequence[Mark],
    title: str,
    axis: str,
    *,
    dropped_above: bool,
    whole: bool = False,
    notes: Sequence[str] = (),
) -> Image.Image:
    """A row of bars for each series over one shared axis, with the marks drawn through all rows.

    The side that the first mark drops is tinted: above it or below. A bar's height goes with the square root of its
    count, in each row for itself, so that few values beside many can still be seen; the highest count is written at the
    row's upper edge. Values beyond the axis, which holds 99 in a hundred of them, count in the outermost bar. whole: a
    bar an integer. Raises ValueError where there is no value at all.
    """
    values = [value for each in series for value in each.values]
    if not values or not marks:
        raise ValueError("a histogram needs values and a mark")
    edges = _edges(values, [mark.value for mark in marks], whole)
    low, high = edges[0], edges[-1]
    header = _MARGIN * 2 + _TITLE_SIZE + _LINE_HEIGHT * (len(notes) + 1)
    size = (_LEFT + _PLOT_WIDTH + _RIGHT, header + len(series) * _ROW_HEIGHT + 4 * _LINE_HEIGHT)
    page = Image.new("RGB", size, PAPER)
    draw, font, small = ImageDraw.Draw(page), text_font(_FONT_SIZE), text_font(_FONT_SIZE - 2)
    draw.text((_MARGIN, _MARGIN), title, fill=INK, font=text_font(_TITLE_SIZE))
    for number, note in enumerate(notes):
        draw.text((_MARGIN, _MARGIN * 1.5 + _TITLE_SIZE + number * _LINE_HEIGHT), note, fill=SOFT_INK, font=font)

    if whole:  # the line goes between the bars: an integer that is the threshold itself is kept
        marks = [replace(mark, value=mark.value + (0.5 if dropped_above else -0.5)) for mark in marks]

    def across(value: float) -> float:
        return _LEFT + _PLOT_WIDTH * (min(max(value, low), high) - low) / (high - low)

    bottom = header + len(series) * _ROW_HEIGHT
    sides = (across(marks[0].value), _LEFT + _PLOT_WIDTH) if dropped_above else (_LEFT, across(marks[0].value))
    if sides[1] > sides[0]:
        draw.rectangle((sides[0], header, sides[1], bottom), fill=_DROPPED_SIDE)
    for row, each in enumerate(series):
        _draw_row(draw, each, edges, across, header + row * _ROW_HEIGHT, (font, small))
    draw.line((_LEFT, bottom, _LEFT + _PLOT_WIDTH, bottom), fill=INK)
    for tick in _ticks(low, high, whole):
        draw.line((across(tick), bottom, across(tick), bottom + 4), fill=INK)
        text = f"{tick:.6g}"
        draw.text((across(tick) - font.getlength(text) / 2, bottom + 6), text, fill=SOFT_INK, font=font)
    draw.text((_LEFT, bottom + 8 + _LINE_HEIGHT), axis, fill=SOFT_INK, font=font)
    for mark in marks:
        _draw_mark(draw, mark, across(mark.value), (header, bottom))
    _draw_labels(draw, [(across(mark.value), mark) for mark in marks], header, font)
    return page


def _edges(values: Sequence[float], marked: Sequence[float], whole: bool) -> list[float]:
    if whole:
        low, high = math.floor(min(*values, *marked)), math.ceil(max(*values, *marked))
        return [low - 0.5 + step for step in range(high - low + 2)]
    ordered = sorted(values)
    reach = max(1, round(len(ordered) / 200))
    inner = ordered[reach:-reach] or ordered
    first, last = min(inner[0], *marked), max(inner[-1], *marked)
    room = (last - first) * 0.03 or max(abs(last) * 0.1, 0.1)
    # The axis ends where the values do: an empty strip would look as if there were something beyond 0 or 1.
    start = max(first - room, min(*values, *marked) - room / 3)
    end = min(last + room, max(*values, *marked) + room / 3)
    step = (end - start) / _BINS
    below = math.ceil(round((marked[0] - start) / step, 6))  # an edge lies on the first mark: no bar is on both sides
    above = math.ceil(round((end - marked[0]) / step, 6))
    return [marked[0] + number * step for number in range(-below, above + 1)]


def _draw_row(
    draw: ImageDraw.ImageDraw,
    each: Series,
    edges: Sequence[float],
    across: Callable[[float], float],
    top: int,
    fonts: tuple[FreeTypeFont | BitmapFont, FreeTypeFont | BitmapFont],
) -> None:
    bars = len(edges) - 1
    width = (edges[-1] - edges[0]) / bars
    counts = [0] * bars
    for value in each.values:
        counts[min(bars - 1, max(0, math.floor((value - edges[0]) / width)))] += 1
    base, room = top + _ROW_HEIGHT - 1, _ROW_HEIGHT - 26
    font, small = fonts
    draw.line((_LEFT, base, _LEFT + _PLOT_WIDTH, base), fill=(200, 200, 200))
    lines = wrapped(each.name, _LEFT - 2 * _MARGIN, font)
    counted = [f"{len(each.values)}", *([f"and {each.without} without"] if each.without else [])]
    for number, line in enumerate([*lines, *counted]):
        ink = INK if number < len(lines) else SOFT_INK
        draw.text((_MARGIN, top + 26 + number * _LINE_HEIGHT), line, fill=ink, font=font)
    most = max(counts)
    for number, count in enumerate(counts):
        if count:
            height = max(2, round(room * math.sqrt(count / most)))
            left, right = across(edges[number]), across(edges[number + 1])
            draw.rectangle((left, base - height, max(left, right - 1), base), fill=_BARS[each.good])
    if most:
        highest = counts.index(most)
        text = str(most)
        middle = (across(edges[highest]) + across(edges[highest + 1])) / 2
        left = min(max(_LEFT, middle - small.getlength(text) / 2), _LEFT + _PLOT_WIDTH - small.getlength(text))
        draw.text((left, base - room - 16), text, fill=SOFT_INK, font=small)


def _draw_mark(draw: ImageDraw.ImageDraw, mark: Mark, x: float, rows: tuple[int, int]) -> None:
    top, bottom = rows
    if not mark.dashed:
        draw.line((x, top, x, bottom), fill=_PRESENT, width=2)
        return
    for start in range(top, bottom, 10):
        draw.line((x, start, x, min(start + 5, bottom)), fill=_PROPOSED, width=2)


def _draw_labels(
    draw: ImageDraw.ImageDraw, placed: Sequence[tuple[float, Mark]], header: int, font: FreeTypeFont | BitmapFont
) -> None:
    """Labels above their lines; the first of several ends at its line and the last starts there, so that two lines that
    lie close are told apart. What would lie on each other is pushed apart.
    """
    end = float(_MARGIN)
    ordered = [(x, font.getlength(mark.label), mark) for x, mark in sorted(placed, key=lambda each: each[0])]
    lefts = []
    for number, (x, width, _) in enumerate(ordered):
        part = number / (len(ordered) - 1) if len(ordered) > 1 else 0.5
        lefts.append(max(end, x - width * (1 - part)))
        end = lefts[-1] + width + _MARGIN
    limit = float(_LEFT + _PLOT_WIDTH + _RIGHT - _MARGIN)
    for number in reversed(range(len(ordered))):
        lefts[number] = min(lefts[number], limit - ordered[number][1])
        limit = lefts[number] - _MARGIN
    for left, (_, _, mark) in zip(lefts, ordered, strict=True):
        ink = _PROPOSED if mark.dashed else _PRESENT
        draw.text((left, header - _LINE_HEIGHT - 1), mark.label, fill=ink, font=font)


def _ticks(low: float, high: float, whole: bool) -> list[float]:
    """Five to ten round numbers on the axis."""
    rough = (high - low) / 8
    size = 10 ** math.floor(math.log10(rough))
    step = next(each * size for each in (1, 2, 5, 10) if each * size >= rough)
    step = max(1, round(step)) if whole else step
    return [round(number * step, 10) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
