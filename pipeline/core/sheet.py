"""Contact sheets: pictures with their pose maps and captions on one page, for a person to look at."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
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
def _font(size: int) -> FreeTypeFont | BitmapFont:
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
    top = _TITLE_SIZE + 2 * _MARGIN
    size = (_MARGIN + columns * (width + _MARGIN), top + sum(height + _MARGIN for height in heights))
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, _MARGIN), title, fill=INK, font=_font(_TITLE_SIZE))
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
    font = _font(_FONT_SIZE)
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
    draw, font = ImageDraw.Draw(sheet), _font(_FONT_SIZE)
    text_top = top + _height(cell, (), cell_size)
    for number, (line, ink) in enumerate(text):
        draw.text((left, text_top + number * _LINE_HEIGHT), line, fill=ink, font=font)
