import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.retrieval.metrics import MetricsCounter, id_order
from pipeline.retrieval.protocols import ANOMALY, BEHAVIOUR, IDENTITY, NORMAL, PAB, TIPR, UCC, Judged, counted

judged = st.builds(Judged, st.sampled_from("abcdef"), st.sampled_from("pqr"), st.sampled_from([True, False, None]))


@given(st.lists(judged, min_size=1, max_size=8), st.lists(judged, min_size=1, max_size=12))
def test_every_protocol_counts_the_queries_and_images_that_its_words_say(queries, gallery):
    found = {each.protocol: each for each in counted((*PAB, UCC, "RSTPReid"), queries, gallery)}
    everyone = tuple(range(len(queries)))
    for name in (BEHAVIOUR, UCC, "RSTPReid"):
        assert found[name].rows == everyone
        for row, relevant in zip(everyone, found[name].relevant, strict=True):
            assert list(relevant) == [n for n, each in enumerate(gallery) if each.match == queries[row].match]
    for row, relevant in zip(everyone, found[IDENTITY].relevant, strict=True):
        assert list(relevant) == [n for n, each in enumerate(gallery) if each.person == queries[row].person]
    for name, wanted in ((NORMAL, True), (ANOMALY, False)):
        own = tuple(row for row in everyone if queries[row].normal is wanted)
        assert (found[name].rows if name in found else ()) == own
        for row, relevant in zip(own, found[name].relevant if own else (), strict=True):
            assert np.array_equal(relevant, found[BEHAVIOUR].relevant[row])


def test_identity_is_not_counted_where_nobody_knows_a_person():
    queries = [Judged("a", "p"), Judged("b", None)]
    assert [each.protocol for each in counted(PAB, queries, queries)] == [BEHAVIOUR]


def figures(name, queries, gallery, scores):
    (protocol,) = counted((name,), queries, gallery)
    counter = MetricsCounter(id_order([str(number) for number in range(len(gallery))]))
    counter.add(scores, protocol.relevant)
    return counter.metrics()


@given(st.permutations(range(7)), st.integers(0, 2**31))
def test_figures_do_not_depend_on_the_order_of_the_gallery(order, seed):
    gallery = [Judged("abcdeab"[number]) for number in range(7)]
    queries = [Judged(name) for name in "abcde"]
    scores = np.random.default_rng(seed).normal(size=(5, 7))
    there = figures(UCC, queries, gallery, scores)
    moved = figures(UCC, queries, [gallery[each] for each in order], scores[:, list(order)])
    assert (moved.recall, moved.mean_ap, moved.mean_inp) == (there.recall, there.mean_ap, there.mean_inp)


@given(st.integers(0, 2**31), st.integers(1, 4))
def test_a_distractor_never_raises_a_figure(seed, more):
    random = np.random.default_rng(seed)
    gallery, queries = [Judged(name) for name in "aabbc"], [Judged(name) for name in "abc"]
    scores = random.normal(size=(3, 5))
    crowded = np.concatenate([scores, random.normal(size=(3, more))], axis=1)
    there = figures(UCC, queries, gallery, scores)
    after = figures(UCC, queries, [*gallery, *(Judged("nobody") for _ in range(more))], crowded)
    assert after.mean_ap <= there.mean_ap
    assert all(after.recall[k] <= there.recall[k] for k in there.recall)


@given(st.integers(0, 2**31))
def test_ucc_with_one_image_a_query_is_pab_behaviour(seed):
    gallery = queries = [Judged(name) for name in "abcde"]
    scores = np.random.default_rng(seed).normal(size=(5, 5))
    assert figures(UCC, queries, gallery, scores) == figures(BEHAVIOUR, queries, gallery, scores)


def test_the_sets_of_person_retrieval_are_five():
    assert len(TIPR) == len(set(TIPR)) == 5
