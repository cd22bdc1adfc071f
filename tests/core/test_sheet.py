from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from pipeline.core.sheet import (
    PAPER,
    Cell,
    Mark,
    Series,
    _edges,
    _ticks,
    contact_sheet,
    fitted,
    histogram,
    stacked,
    wrapped,
)

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


# --- histograms ---------------------------------------------------------------------------------------------------

GREEN, RUST, INK_LINE, VIOLET, TINT = (62, 125, 90), (190, 84, 60), (25, 25, 28), (150, 30, 150), (243, 232, 228)


def columns_of(page: Image.Image, colour: tuple[int, int, int], rows: slice = slice(None)) -> np.ndarray:
    return np.flatnonzero((np.asarray(page)[rows] == colour).all(axis=2).any(axis=0))


def test_bars_stand_where_their_values_are_and_the_side_that_is_dropped_is_tinted():
    series = [Series("good", (0.8, 0.9), True), Series("bad", (0.1, 0.2), False)]
    page = histogram(series, [Mark(0.5, "present 0.5")], "t", "a", dropped_above=False)
    plot = slice(80, 290)  # below the title
    line = columns_of(page, INK_LINE, slice(100, 110))
    assert len(line) == 2
    assert columns_of(page, GREEN, plot).min() > line.max()
    assert columns_of(page, RUST, plot).max() < line.min()
    assert columns_of(page, TINT, plot).max() <= line.max()
    above = histogram(series, [Mark(0.5, "present 0.5")], "t", "a", dropped_above=True)
    assert columns_of(above, TINT, plot).min() >= line.min()


def test_a_proposed_value_is_a_dashed_line_at_its_place():
    series = [Series("all", tuple(number / 100 for number in range(101)))]
    page = histogram(series, [Mark(0.2, "present"), Mark(0.7, "proposed", dashed=True)], "t", "a", dropped_above=False)
    dashed = columns_of(page, VIOLET, slice(90, 160))
    present = columns_of(page, INK_LINE, slice(100, 110))
    assert 0.48 < (dashed.mean() - present.mean()) / 820 < 0.52
    column = (np.asarray(page)[80:180, round(dashed.mean())] == VIOLET).all(axis=1)
    assert 0.2 < column.mean() < 0.8


@given(
    values=st.lists(st.floats(-5, 5), min_size=1, max_size=40),
    present=st.floats(-5, 5),
    whole=st.booleans(),
)
def test_any_values_can_be_drawn_and_no_bar_lies_on_both_sides_of_the_line(values, present, whole):
    edges = _edges(values, [present], whole)
    assert edges == sorted(edges)
    if not whole:
        assert min(abs(edge - present) for edge in edges) < 1e-9
    assert edges[0] <= present <= edges[-1]


def test_whole_numbers_have_a_bar_each_and_the_line_lies_between_them():
    page = histogram([Series("n", (1, 2, 3), True)], [Mark(2, "present 2")], "t", "a", dropped_above=False, whole=True)
    line = columns_of(page, INK_LINE, slice(100, 110))
    assert line.mean() - 150 == pytest.approx(820 / 3, abs=2)


def test_the_same_values_give_the_same_picture_and_none_at_all_is_an_error():
    series = [Series("a", (0.1, 0.4), True, without=3)]
    first, second = (histogram(series, [Mark(0.3, "p")], "t", "a", dropped_above=True) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert histogram([Series("a", (0.5,))], [Mark(0.5, "p")], "t", "a", dropped_above=True).size[1] > 100
    with pytest.raises(ValueError, match="needs values"):
        histogram([Series("a", ())], [Mark(0.3, "p")], "t", "a", dropped_above=True)


@given(low=st.floats(-100, 100), width=st.floats(0.001, 1000), whole=st.booleans())
def test_the_axis_has_some_round_numbers_but_not_too_many(low, width, whole):
    width = max(width, 3.0) if whole else width
    ticks = _ticks(low, low + width, whole)
    assert 1 <= len(ticks) <= 17
    assert all(low - 1e-6 <= tick <= low + width + 1e-6 for tick in ticks)


def test_a_title_that_is_too_long_for_its_sheet_goes_on_in_a_second_line():
    short, long = (contact_sheet([Cell(RED)], 1, 100, title) for title in ("one", "a title of many words " * 2))
    assert long.width == short.width
    assert long.height > short.height
    assert (np.asarray(long)[:, -9:] == PAPER).all()
