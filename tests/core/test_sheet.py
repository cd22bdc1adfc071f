from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from pipeline.core.sheet import PAPER, Cell, contact_sheet, fitted, stacked, wrapped

RED = Image.new("RGB", (60, 30), (255, 0, 0))
BLUE = Image.new("RGB", (60, 30), (0, 0, 255))
FONT = ImageFont.load_default(size=14)


def share(sheet: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(sheet) == colour).all(axis=2).sum())


def test_a_picture_and_its_pose_map_stand_side_by_side_whole_and_unstretched():
    sheet = contact_sheet([Cell(RED, pose=BLUE)], columns=1, cell_size=100, title="one")
    assert share(sheet, (255, 0, 0)) == share(sheet, (0, 0, 255)) == 100 * 50
    pixels = np.asarray(sheet)
    red_columns = np.flatnonzero((pixels == (255, 0, 0)).all(axis=2).any(axis=0))
    blue_columns = np.flatnonzero((pixels == (0, 0, 255)).all(axis=2).any(axis=0))
    assert red_columns.max() < blue_columns.min()


def test_cells_fill_rows_and_none_leaves_its_place_empty():
    sheet = contact_sheet([Cell(RED), None, Cell(BLUE)], columns=2, cell_size=60, title="", text_lines=0)
    pixels = np.asarray(sheet)
    half, middle = pixels.shape[1] // 2, pixels.shape[0] - (60 + 4 + 10)
    assert (pixels[:middle, :half] == (255, 0, 0)).all(axis=2).sum() == 60 * 30
    assert (pixels[middle:, :half] == (0, 0, 255)).all(axis=2).sum() == 60 * 30
    assert (pixels[50:, half + 5 :] == PAPER).all()


def test_text_is_drawn_below_the_picture_and_a_cell_without_picture_has_text_alone():
    sheet = contact_sheet([Cell(RED, "a heading", ("a line",))], columns=1, cell_size=80, title="")
    pixels = np.asarray(sheet)
    red_rows = np.flatnonzero((pixels == (255, 0, 0)).all(axis=2).any(axis=1))
    other_rows = np.flatnonzero(((pixels != PAPER).any(axis=2) & ~(pixels == (255, 0, 0)).all(axis=2)).any(axis=1))
    assert len(other_rows) > 10
    assert red_rows.max() < other_rows.min()
    words_only = contact_sheet([Cell(None, "a heading")], columns=1, cell_size=80, title="")
    assert share(words_only, (255, 0, 0)) == 0
    assert share(words_only, PAPER) < words_only.width * words_only.height


def test_text_that_does_not_fit_stays_inside_its_cell():
    long = "word " * 500
    sheet = contact_sheet([Cell(RED, "id", (long,)), None], columns=2, cell_size=80, title="", text_lines=3)
    pixels = np.asarray(sheet)
    assert (pixels[42:, 10 + 80 + 5 :] == PAPER).all()
    assert (pixels[-8:] == PAPER).all()


def test_a_row_of_text_takes_no_room_for_pictures():
    text, picture = Cell(None, "three words here"), Cell(RED, "three words here")
    heights = [contact_sheet([cell], 1, 300, "").height for cell in (text, picture)]
    assert heights[1] - heights[0] == 304


def test_the_same_cells_give_the_same_pixels():
    cells = [Cell(RED, "id", ("caption of it",), BLUE)]
    assert contact_sheet(cells, 1, 64, "t").tobytes() == contact_sheet(cells, 1, 64, "t").tobytes()


@given(text=st.text(alphabet="ab iW.", max_size=120), width=st.integers(20, 200))
def test_wrapped_lines_hold_every_letter_in_order_and_none_is_too_wide(text, width):
    lines = wrapped(text, width, FONT)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(FONT.getlength(line) <= width or len(line) == 1 for line in lines)


@given(width=st.integers(1, 500), height=st.integers(1, 500), side=st.integers(16, 200))
def test_a_fitted_picture_touches_the_square_and_keeps_its_shape(width, height, side):
    small = fitted(Image.new("RGB", (width, height)), side)
    assert max(small.size) == side
    assert abs(small.width * height - small.height * width) <= max(width, height)


def test_stacked_sheets_lie_one_below_the_other():
    page = stacked([RED, BLUE.resize((20, 10))])
    assert page.size == (60, 40)
    assert page.getpixel((5, 35)) == (0, 0, 255)
    assert page.getpixel((50, 35)) == PAPER


@pytest.mark.parametrize(("columns", "cell_size"), [(0, 100), (1, 3)])
def test_a_sheet_without_room_is_an_error(columns, cell_size):
    with pytest.raises(ValueError, match="at least one column"):
        contact_sheet([Cell(RED)], columns, cell_size, "")


def test_no_sheets_cannot_be_stacked():
    with pytest.raises(ValueError, match="no sheet"):
        stacked([])
