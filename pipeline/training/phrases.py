"""The phrases of an action codebook, read off the labels of training data (LightAIR)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pipeline.core.vocabulary import classes, counted, label_stems

MOST_WORDS = 3
"""Of a phrase, articles and forms of to be and to get not counted."""
LEAST_TIMES = 2


def parts_of(label: str) -> list[str]:
    """The actions that a label names, lower-case: it may name several with commas between them."""
    return [part for each in label.split(",") if (part := " ".join(each.lower().split()))]


def action_phrases(labels: Iterable[str | None]) -> tuple[str, ...]:
    """Phrases of at most three words that labels name at least twice, near-duplicates merged, in alphabetical order.

    Labels are actions and anomalies as the data has them; None says nothing.
    """
    named = counted(part for label in labels if label for part in parts_of(label))
    short = {name: count for name, count in named.items() if 0 < len(label_stems(name, True)) <= MOST_WORDS}
    merged = classes("anomaly", short)
    return tuple(sorted(each.name for each in merged if each.count >= LEAST_TIMES))


def phrase_finder(phrases: Sequence[str]) -> Callable[[str | None], int | None]:
    """Which phrase a label names first: by its words, else by what is left of them without endings; None for none."""
    exact = {phrase: number for number, phrase in enumerate(phrases)}
    stems: dict[tuple[str, ...], int] = {}
    for number, phrase in enumerate(phrases):
        stems.setdefault(label_stems(phrase, True), number)

    def found(label: str | None) -> int | None:
        for part in parts_of(label or ""):
            number = exact.get(part, stems.get(label_stems(part, True)))
            if number is not None:
                return number
        return None

    return found
