"""Colours, posture and place read off drawn people whose clothes and joints are known."""

from __future__ import annotations

import mannequin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageColor

from pipeline.backends.pixel_reading import (
    COLOR_NAMES,
    as_rgb,
    describe_patch,
    is_colorless,
    lab_from_rgb,
    name_colors,
    read_outfit,
    read_place,
    read_position,
    read_posture,
)
from pipeline.core.pose import COCO_INDEX

# What people call the named colours of the web.
NAMED = {
    "black": ("black",),
    "white": ("white", "snow", "whitesmoke"),
    "gray": ("gray", "darkgray", "silver"),
    "red": ("red", "crimson", "firebrick", "darkred"),
    "orange": ("orange", "darkorange", "orangered"),
    "yellow": ("yellow", "gold"),
    "green": ("green", "lime", "forestgreen", "limegreen", "darkgreen", "olivedrab"),
    "blue": ("blue", "navy", "royalblue", "steelblue", "deepskyblue", "lightblue", "midnightblue"),
    "purple": ("purple", "indigo", "darkorchid", "blueviolet"),
    "pink": ("pink", "hotpink", "deeppink"),
    "brown": ("saddlebrown", "sienna"),
    "beige": ("beige", "tan", "wheat", "antiquewhite"),
}
CLOTHS = {
    name: ImageColor.getrgb(shades[0])
    for name, shades in NAMED.items()
    if name not in ("black", "white", "beige")  # beige is near the drawn skin
}


def posed(changes: dict[str, tuple[float, float]] | None = None, turn: float = 0, height: float = 240) -> np.ndarray:
    return mannequin.joints(mannequin.STANDING | (changes or {}), height, (160, 290), turn)


def dressed(clothes: mannequin.Clothes, keypoints: np.ndarray | None = None, **hidden: float):
    keypoints = posed() if keypoints is None else keypoints
    image = mannequin.draw(keypoints, clothes, mannequin.room())
    keypoints = keypoints.copy()
    for joint, score in hidden.items():
        keypoints[COCO_INDEX[joint], 2] = score
    return image, mannequin.person(keypoints)


def test_lab_agrees_with_the_colour_management_library():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (1, 500, 3), dtype=np.uint8)
    transform = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB", 6504), "RGB", "LAB"
    )
    reference = np.array(ImageCms.applyTransform(Image.fromarray(pixels), transform), dtype=float)[0]
    reference = np.stack([reference[:, 0] / 2.55, *(np.where(c > 127, c - 256, c) for c in reference[:, 1:].T)], axis=1)
    difference = np.abs(lab_from_rgb(pixels[0]) - reference)
    assert np.median(difference) < 1.0
    assert np.abs(lab_from_rgb(np.array([[255, 255, 255]])) - [100, 0, 0]).max() < 1e-6


@pytest.mark.parametrize(("name", "web"), [(name, web) for name, webs in NAMED.items() for web in webs])
def test_colours_have_the_names_people_give_them(name, web):
    lab = lab_from_rgb(np.array([ImageColor.getrgb(web)]))
    assert COLOR_NAMES[name_colors(lab)[0]] == name


@pytest.mark.parametrize("name", CLOTHS)
def test_top_and_bottom_are_named_by_the_colour_they_are_drawn_in(name):
    other = "green" if name == "red" else "red"
    image, person = dressed(mannequin.Clothes(top=CLOTHS[name], bottom=CLOTHS[other]))
    outfit = read_outfit(image, person)
    assert outfit.top is not None
    assert outfit.top[0].split()[-1] == name
    assert outfit.bottom is not None
    assert outfit.bottom[0].split()[-1] == other


@pytest.mark.parametrize(
    ("sleeves", "word"), [("long", "long-sleeved"), ("short", "short-sleeved"), ("none", "sleeveless")]
)
@pytest.mark.parametrize(("legs", "legwear"), [("trousers", "trousers"), ("shorts", "shorts")])
def test_bare_arms_and_shins_tell_the_cut(sleeves, word, legs, legwear):
    image, person = dressed(mannequin.Clothes(sleeves=sleeves, legs=legs))
    outfit = read_outfit(image, person)
    assert (outfit.sleeves, outfit.legwear) == (word, legwear)


def test_no_garment_is_named_whose_joints_are_not_seen():
    clothes = mannequin.Clothes()
    knees = {"left_knee": 0.2, "right_knee": 0.2}
    outfit = read_outfit(*dressed(clothes, **knees))
    assert outfit.top
    assert outfit.bottom is None
    assert outfit.legwear is None
    hips = {"left_hip": 0.2, "right_hip": 0.2}
    assert read_outfit(*dressed(clothes, **hips)).top is None
    ankles = {"left_ankle": 0.2, "right_ankle": 0.2}
    assert read_outfit(*dressed(clothes, **ankles)).legwear is None
    wrists = {"left_wrist": 0.2, "right_wrist": 0.2}
    assert read_outfit(*dressed(clothes, **wrists)).sleeves is None


def covered(image: np.ndarray, keypoints: np.ndarray, upper: str, lower: str, first: float, last: float) -> np.ndarray:
    """The image with a yellow board over the share first..last of the way from one pair of joints to another."""
    ends = [
        np.mean([keypoints[COCO_INDEX[f"{side}_{name}"], :2] for side in ("left", "right")], 0)
        for name in (upper, lower)
    ]
    (x, y0), (_, y1) = (ends[0] + share * (ends[1] - ends[0]) for share in (first, last))
    image = image.copy()
    image[int(y0) : int(y1), int(x) - 30 : int(x) + 30] = (240, 210, 40)
    return image


def test_a_board_before_the_chest_does_not_take_the_tops_colour():
    keypoints = posed(both((0.24, 0.66), (0.3, 0.52)))
    image, person = dressed(mannequin.Clothes(), keypoints)
    held = covered(image, keypoints, "shoulder", "hip", 0.12, 1.0)
    assert read_outfit(held, person).top == ("red",)


def test_a_board_before_the_hips_does_not_take_the_trousers_colour():
    image, person = dressed(mannequin.Clothes())
    held = covered(image, person.keypoints, "hip", "knee", -0.3, 0.2)
    assert read_outfit(held, person).bottom == ("dark blue",)


def test_legwear_is_told_from_the_top_where_the_hips_are_found_too_high():
    image, person = dressed(mannequin.Clothes())
    keypoints = person.keypoints.copy()
    rows = [COCO_INDEX[f"{side}_{part}"] for side in ("left", "right") for part in ("hip", "knee")]
    keypoints[rows, 1] -= 34
    outfit = read_outfit(image, mannequin.person(keypoints))
    assert outfit.top == ("red",)
    assert outfit.bottom == ("dark blue",)


def test_bare_legs_of_somebody_seen_from_behind_are_skin_by_the_colour_of_the_hands():
    short = posed({f"{side}_knee": (0.07 * sign, 0.44) for side, sign in (("left", 1), ("right", -1))})
    image, person = dressed(mannequin.Clothes(legs="shorts", top=(30, 110, 60)), short, nose=0.1)
    keypoints = person.keypoints.copy()
    knees = [COCO_INDEX[f"{side}_knee"] for side in ("left", "right")]
    keypoints[knees] = posed()[knees]  # the shorts end high above them
    outfit = read_outfit(image, mannequin.person(keypoints))
    assert outfit.bottom == ("dark blue",)
    assert outfit.legwear == "shorts"


def test_white_cloth_that_is_mostly_in_the_shade_is_white():
    image, person = dressed(mannequin.Clothes(top=(240, 238, 230)))
    shaded = image.copy()
    shaded[:, :180] = (shaded[:, :180] * 0.55).astype(np.uint8)  # all of it but an arm
    assert read_outfit(shaded, person).top == ("white",)
    image, person = dressed(mannequin.Clothes(top=(128, 128, 130)))
    assert read_outfit(image, person).top == ("gray",)


def test_cloth_of_the_skins_colour_is_not_named():
    image, person = dressed(mannequin.Clothes(top=mannequin.SKIN, bottom=mannequin.SKIN))
    outfit = read_outfit(image, person)
    assert outfit.top is None
    assert outfit.bottom is None


def test_a_white_cloth_in_the_shade_is_white_and_a_gray_one_gray():
    rng = np.random.default_rng(0)
    shade = rng.uniform(0.6, 1.0, (300, 1))
    assert describe_patch((np.array([[240, 236, 228]]) * shade).astype(np.uint8)).names == ("white",)
    assert describe_patch((np.array([[128, 128, 130]]) * shade).astype(np.uint8)).names[0].endswith("gray")


def test_two_colours_are_named_and_many_are_not():
    red, white = np.tile([[200, 20, 30]], (60, 1)), np.tile([[250, 250, 250]], (40, 1))
    assert describe_patch(np.concatenate([red, white]).astype(np.uint8)).names == ("red", "white")
    many = np.repeat(np.array([CLOTHS[n] for n in ("red", "green", "blue", "yellow", "pink")], np.uint8), 20, axis=0)
    assert describe_patch(many) is None
    assert describe_patch(many[:5]) is None


def test_a_black_and_white_picture_gives_dark_and_light_alone():
    image, person = dressed(mannequin.Clothes(top=(30, 30, 160), bottom=(240, 230, 120)))
    gray = np.repeat(np.asarray(Image.fromarray(image).convert("L"))[:, :, None], 3, axis=2)
    assert is_colorless(gray)
    assert not is_colorless(image)
    outfit = read_outfit(gray, person)
    assert (outfit.top, outfit.bottom, outfit.sleeves) == (("dark",), ("light",), None)
    assert read_place(gray, [person]).colorless


@pytest.mark.parametrize(
    ("turn", "stance"), [(0, "standing"), (12, "standing"), (90, "lying"), (-80, "lying"), (180, "upside_down")]
)
def test_the_turn_of_the_body_is_its_stance(turn, stance):
    assert read_posture(mannequin.person(posed(turn=turn)), 320, 320).stance == stance


def test_bent_crouching_and_kicking_bodies_are_told_apart():
    bent = {name: (x + 0.30, 0.60 - 0.3 * (y - 0.81)) for name, (x, y) in mannequin.STANDING.items() if y > 0.6}
    bent |= {"left_wrist": (0.3, 0.3), "right_wrist": (0.26, 0.3)}
    assert read_posture(mannequin.person(posed(bent)), 320, 320).stance == "bent"
    low = {"left_knee": (0.2, 0.25), "right_knee": (-0.2, 0.25)}
    for name, (x, y) in mannequin.STANDING.items():
        if name.endswith(("hip", "shoulder", "elbow", "wrist")):
            low[name] = (x, y - 0.33)
    assert read_posture(mannequin.person(posed(low)), 320, 320).stance == "low"
    kick = read_posture(mannequin.person(posed({"left_knee": (0.3, 0.5), "left_ankle": (0.52, 0.52)})), 320, 320)
    assert kick.stance == "standing"
    assert kick.legs == "one_raised"


def seen_along(share: float) -> np.ndarray:
    """Somebody on the back with the arms spread, seen from the feet (share > 0) or the head: what points at the camera
    is a share of its length in the picture.
    """
    arms = both((0.30, 0.81), (0.45, 0.81))
    flat = {name: (x, 0.5 + share * (y - 0.5)) for name, (x, y) in (mannequin.STANDING | arms).items()}
    return mannequin.joints(flat, 240, (160, 290))


@pytest.mark.parametrize("share", [0.4, 0.25, -0.25, -0.4])
def test_a_body_that_points_at_the_camera_lies_although_the_picture_shows_it_upright(share):
    assert read_posture(mannequin.person(seen_along(share)), 320, 320).stance == "lying"
    assert read_posture(mannequin.person(seen_along(1.0)), 320, 320).stance == "standing"
    assert read_posture(mannequin.person(seen_along(-1.0)), 320, 320).stance == "upside_down"


def test_who_leans_back_level_for_a_kick_stands_bent_and_has_not_fallen():
    level = {
        name: (x + 0.8 * (y - 0.52) if y > 0.53 else x, 0.52 + 0.2 * (y - 0.52) if y > 0.53 else y)
        for name, (x, y) in mannequin.STANDING.items()
    }
    level |= {"left_knee": (-0.24, 0.55), "left_ankle": (-0.46, 0.6)}
    assert read_posture(mannequin.person(posed(level)), 320, 320).stance == "bent"


def test_a_lying_body_tells_whether_it_is_outstretched_and_where_its_head_is():
    right = read_posture(mannequin.person(posed(turn=90)), 320, 320)
    assert (right.outstretched, right.head_side, right.on_all_fours) == (True, "right", False)
    left = read_posture(mannequin.person(posed(turn=-90)), 320, 320)
    assert (left.outstretched, left.head_side) == (True, "left")


def test_hands_and_knees_below_a_level_trunk_are_all_fours():
    fours = dict.fromkeys(mannequin.STANDING, (0.0, 0.0))
    for side, off in (("left", 0.01), ("right", -0.01)):
        fours |= {f"{side}_ear": (0.36 + off, 0.36), f"{side}_eye": (0.38 + off, 0.36)}
        fours |= {f"{side}_shoulder": (0.27 + off, 0.33), f"{side}_elbow": (0.28 + off, 0.16)}
        fours |= {f"{side}_wrist": (0.28 + off, 0.02), f"{side}_hip": (off, 0.29)}
        fours |= {f"{side}_knee": (0.02 + off, 0.05), f"{side}_ankle": (-0.22 + off, 0.03)}
    fours["nose"] = (0.39, 0.34)
    posture = read_posture(mannequin.person(posed(fours)), 320, 320)
    assert (posture.stance, posture.on_all_fours) == ("lying", True)


def test_an_upright_trunk_is_told_where_the_legs_are_not_seen():
    keypoints = posed()
    keypoints[[COCO_INDEX[f"{side}_{part}"] for side in ("left", "right") for part in ("knee", "ankle")], 2] = 0.1
    assert read_posture(mannequin.person(keypoints), 320, 320).stance == "upright"


def both(elbow: tuple[float, float], wrist: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """Both arms alike, given for the left one."""
    return {
        f"{side}_{part}": (sign * x, y)
        for side, sign in (("left", 1), ("right", -1))
        for part, (x, y) in (("elbow", elbow), ("wrist", wrist))
    }


@pytest.mark.parametrize(
    ("changes", "arms"),
    [
        ({}, "down"),
        ({"left_elbow": (0.18, 0.95), "left_wrist": (0.2, 1.1)}, "one_raised"),
        (both((0.18, 0.95), (0.2, 1.1)), "both_raised"),
        (both((0.3, 0.81), (0.45, 0.81)), "spread"),
    ],
)
def test_arms_are_where_the_hands_are(changes, arms):
    assert read_posture(mannequin.person(posed(changes)), 320, 320).arms == arms


def test_nothing_is_said_of_a_body_whose_joints_are_not_seen():
    unseen = posed()
    unseen[:, 2] = 0.2
    posture = read_posture(mannequin.person(unseen), 320, 320)
    assert (posture.stance, posture.arms, posture.legs, posture.whole) == (None, None, None, False)


def textured(color, spread: float, shape=(120, 320)) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, spread, (*shape, 1))
    return np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)


def test_grass_snow_water_and_sky_are_named_only_where_colour_and_grain_agree():
    sky = textured((120, 180, 235), 0.5, (200, 320))
    wall = textured((150, 120, 100), 1.0, (200, 320))
    assert read_place(np.vstack([sky, textured((80, 140, 50), 9)]), []).surface == "grass"
    assert read_place(np.vstack([sky, textured((80, 140, 50), 9)]), []).sky
    painted = read_place(np.vstack([wall, textured((80, 140, 50), 0.5)]), [])
    assert (painted.surface, painted.ground, painted.sky) == (None, "green", False)
    assert read_place(np.vstack([wall, textured((40, 130, 170), 12)]), []).surface == "water"
    assert read_place(np.vstack([wall, textured((40, 90, 190), 0.5)]), []).surface is None
    assert read_place(np.vstack([sky, textured((225, 230, 238), 2)]), []).surface == "snow"
    assert read_place(np.vstack([wall, textured((225, 230, 238), 2)]), []).surface is None


def test_people_are_left_out_of_the_place():
    image = mannequin.room(wall=(60, 90, 200))
    image[:, 60:260] = (200, 20, 20)
    person = mannequin.person(posed())
    person = type(person)(person.keypoints, (60, 0, 260, 320), 0.9)
    assert read_place(image, [person]).backdrop == "blue"


def test_position_is_the_side_and_the_share_of_the_height():
    person = mannequin.person(posed())
    left = type(person)(person.keypoints, (0, 0, 60, 160), 0.9)
    assert read_position(left, 320, 320) == ("left", 0.5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.lists(st.tuples(*[st.floats(-50, 80)] * 2, st.floats(0, 1)), min_size=17, max_size=17),
)
def test_any_joints_in_any_picture_are_read_without_an_error(width, height, joints):
    image = np.random.default_rng(width * 31 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    person = mannequin.person(np.array(joints, dtype=np.float32))
    read_outfit(image, person)
    read_posture(person, width, height)
    read_place(image, [person])


def test_transparent_pixels_lie_on_white():
    image = np.zeros((2, 2, 4), np.uint8)
    image[0, 0] = (10, 20, 30, 255)
    assert as_rgb(image)[0, 0].tolist() == [10, 20, 30]
    assert as_rgb(image)[1, 1].tolist() == [255, 255, 255]
    with pytest.raises(ValueError, match="uint8"):
        as_rgb(np.zeros((2, 2, 3)))
    with pytest.raises(ValueError, match="channels"):
        as_rgb(np.zeros((2, 2, 5), np.uint8))
