import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.vocabulary import RARER, class_of, classes, counted, label_stems, word_stem


def together(question, counts):
    """The classes as sets of labels."""
    return {frozenset(each.variants) for each in classes(question, counts)}


def merged(question, *labels):
    return len(together(question, dict.fromkeys(labels, 1))) == 1


@pytest.mark.parametrize(
    "labels",
    [
        ("falling", "falls", "fall", "fell", "a fall"),
        ("losing balance", "loses his balance", "lost balance", "balance losing"),
        ("slipping", "slips", "slipped"),
        ("riding scooter", "riding a scooter", "rides scooters", "rode a scooter"),
        ("falling to the ground", "falling to ground"),
        ("falling into water", "falling in the water"),
        ("skateboarding", "skate boarding", "skate-boarding"),
        ("traveling", "travelling", "travels"),
        ("cycling", "cycles"),
        ("dancing", "dances", "danced"),
        ("carrying boxes", "carries a box"),
        ("hitting head", "hits his head"),
    ],
)
def test_labels_that_differ_in_form_alone_are_one_class(labels):
    assert merged("action", *labels)
    assert merged("anomaly", *labels)


@pytest.mark.parametrize(
    "labels",
    [
        ("slipping", "skipping"),
        ("slipping", "flipping"),
        ("hiking", "biking"),
        ("hoping", "hopping"),
        ("singing", "swinging"),
        ("falling", "falling to the ground"),
        ("walking", "talking"),
        ("riding bike", "riding horse"),
        ("filing", "filling"),
    ],
)
def test_labels_that_say_something_else_stay_apart(labels):
    assert not merged("action", *labels)


def test_places_lose_their_plural_and_keep_their_endings():
    assert merged("scene", "parking lot", "parking lots", "a parking lot")
    assert merged("scene", "theatre", "theater")
    assert merged("scene", "playground", "play ground")
    assert not merged("scene", "parking", "park")
    assert not merged("scene", "building", "build")


def test_a_rare_misspelling_joins_what_is_meant_and_a_frequent_word_does_not():
    assert together("anomaly", {"slipping": 30, "sliping": 3}) == {frozenset({"slipping", "sliping"})}
    assert len(together("anomaly", {"slipping": 30, "sliping": 4})) == 2
    assert len(together("anomaly", {"slipping": 1000, "skipping": 1})) == 2
    assert len(together("action", {"motorcycling": RARER, "motorcyling": 1})) == 1
    assert len(together("action", {"motorcycling": RARER, "otorcycling": 1})) == 2
    assert len(together("scene", {"trail": 100, "trial": 1})) == 1


def test_a_class_is_named_by_its_most_frequent_label_and_has_all_counts():
    (found,) = classes("anomaly", {"falls": 2, "falling": 5, "fell": 2})
    assert (found.name, found.count) == ("falling", 9)
    assert list(found.variants.items()) == [("falling", 5), ("fell", 2), ("falls", 2)]
    assert class_of([found]) == {"falls": "falling", "falling": "falling", "fell": "falling"}


def test_classes_come_most_frequent_first():
    assert [each.name for each in classes("scene", {"street": 1, "park": 3, "lawn": 1})] == ["park", "lawn", "street"]


def test_a_label_of_nothing_but_small_words_or_marks_is_a_class_of_its_own():
    assert len(classes("action", {"the": 1, "his": 1, "?": 1, "!": 1})) == 4


def test_nulls_are_not_counted():
    assert counted(["a", None, "a"]) == {"a": 2}


def test_a_column_without_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match="no vocabulary of 'caption'"):
        classes("caption", {})


@pytest.mark.parametrize(
    ("word", "stem"),
    [("hopping", "hop"), ("hoping", "hope"), ("rolling", "roll"), ("running", "run"), ("rides", "rid"),
     ("riding", "rid"), ("glasses", "glass"), ("ice", "ice"), ("skiing", "ski"), ("tries", "try"), ("bring", "bring"),
     ("sing", "sing")],
)  # fmt: skip
def test_words_lose_their_endings(word, stem):
    found = word_stem(word, True)
    assert found in (stem, f"{stem}e")
    assert label_stems(f"the {word}", True) == (found,)


words = st.sampled_from(
    ["fall", "falls", "falling", "fell", "slip", "sliping", "slipping", "his", "the", "grund", "skateboarding"]
)
labels = st.lists(words, min_size=1, max_size=3).map(" ".join)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(labels, st.integers(1, 200), max_size=12), st.randoms())
def test_classes_part_the_labels_keep_the_counts_and_do_not_depend_on_order(counts, random):
    made = classes("action", counts)
    assert sorted(label for each in made for label in each.variants) == sorted(counts)
    assert {label: each.variants[label] for each in made for label in each.variants} == counts
    assert sum(each.count for each in made) == sum(counts.values())
    order = list(counts)
    random.shuffle(order)
    assert classes("action", {label: counts[label] for label in order}) == made
