"""What two hurried workers write of a clip: what somebody was about to do, and what went wrong.

In the manner of OOPS!'s captions: short, careless, articles missing, tenses mixed, words misspelt, sometimes empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.backends.simulator.person import Looks

# Of each action: -ing, third person, past, infinitive; several ways to say it, each a tuple of the four.
_DOING: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "walking": (
        ("walking", "walks", "walked", "walk"),
        ("taking a walk", "takes a walk", "took a walk", "take a walk"),
        ("strolling along", "strolls along", "strolled along", "stroll along"),
        ("walking across", "walks across", "was walking across", "walk across"),
    ),
    "running": (
        ("running", "runs", "ran", "run"),
        ("jogging", "jogs", "was jogging", "jog"),
        ("sprinting", "sprints", "sprinted", "sprint"),
        ("running really fast", "runs really fast", "ran full speed", "run as fast as possible"),
    ),
    "jumping": (
        ("jumping", "jumps", "jumped", "jump"),
        ("doing a big jump", "does a big jump", "did a jump", "make a big jump"),
        ("leaping in the air", "leaps up", "leapt up", "jump up high"),
    ),
    "crawling": (
        ("crawling", "crawls", "crawled", "crawl"),
        ("crawling on hands and knees", "crawls on the ground", "was crawling around", "crawl along the ground"),
    ),
    "dancing": (
        ("dancing", "dances", "danced", "dance"),
        ("showing off dance moves", "shows some dance moves", "was dancing", "do a dance"),
        ("practicing a dance", "does a dance", "did a dance", "show a dance routine"),
    ),
    "kicking a ball": (
        ("kicking a ball", "kicks a ball", "kicked a ball", "kick a ball"),
        ("playing soccer", "plays soccer", "played soccer", "kick a soccer ball"),
        ("kicking a football", "kicks the football hard", "was kicking a football", "kick a football"),
    ),
    "boxing": (
        ("punching a bag", "punches a bag", "punched a bag", "punch the bag"),
        ("boxing", "is boxing with a punching bag", "boxed", "practice boxing"),
        ("hitting the punching bag", "hits the bag", "was hitting the bag", "hit the bag"),
    ),
    "doing a cartwheel": (
        ("doing a cartwheel", "does a cartwheel", "did a cartwheel", "do a cartwheel"),
        ("doing cartwheels", "does cartwheels", "was doing a cartwheel", "show a cartwheel"),
    ),
    "doing a backflip": (
        ("doing a backflip", "does a backflip", "did a backflip", "do a backflip"),
        ("doing a back flip", "jumps for a backflip", "attempted a back flip", "land a backflip"),
        ("flipping backwards", "does a flip", "tried a flip", "flip backwards"),
    ),
    "doing a somersault": (
        ("doing a somersault", "does a somersault", "did a somersault", "do a somersault"),
        ("doing a forward roll", "rolls on the ground", "did a forward roll", "roll forward"),
    ),
    "doing a karate kick": (
        ("doing a karate kick", "does a karate kick", "did a karate kick", "do a karate kick"),
        ("doing a spin kick", "does a spin kick", "did a spin kick", "do a spin kick"),
        ("practicing karate", "shows karate", "was doing karate", "show a karate move"),
    ),
    "skateboarding": (
        ("skateboarding", "skateboards", "skateboarded", "skateboard"),
        ("riding a skateboard", "rides a skateboard", "rode a skateboard", "ride a skateboard"),
        ("skating on a board", "is on a skateboard", "was on a skateboard", "do a skateboard trick"),
    ),
    "riding a scooter": (
        ("riding a scooter", "rides a scooter", "rode a scooter", "ride a scooter"),
        ("going on a scooter", "pushes along on a scooter", "was on a scooter", "ride the scooter"),
    ),
    "riding a bike": (
        ("riding a bike", "rides a bike", "rode a bike", "ride a bike"),
        ("cycling", "cycles along", "was cycling", "cycle"),
        ("riding her bicycle", "is on a bicycle", "was riding bicycle", "ride a bicycle"),
    ),
    "climbing a ladder": (
        ("climbing a ladder", "climbs a ladder", "climbed a ladder", "climb a ladder"),
        ("going up a ladder", "goes up the ladder", "went up a ladder", "get up the ladder"),
        ("standing on a ladder", "is on a ladder", "was up on a ladder", "climb up the ladder"),
    ),
    "carrying a box": (
        ("carrying a box", "carries a box", "carried a box", "carry a box"),
        ("moving a big box", "moves a box", "was moving a box", "move a box"),
        ("carrying a package", "brings a package", "was carrying a parcel", "bring a package in"),
    ),
    "lifting a barbell": (
        ("lifting a barbell", "lifts a barbell", "lifted a barbell", "lift a barbell"),
        ("lifting weights", "lifts weights", "was lifting weights", "lift weights"),
        ("lifting a heavy weight", "lifts a heavy weight over head", "lifted heavy weights", "lift a heavy barbell"),
    ),
    "sitting on a chair": (
        ("sitting on a chair", "sits on a chair", "sat on a chair", "sit on a chair"),
        ("sitting in a chair", "is sitting in chair", "was sitting on chair", "sit down on a chair"),
        ("leaning back in a chair", "leans back in chair", "leaned back in a chair", "rest on a chair"),
    ),
    "throwing a ball": (
        ("throwing a ball", "throws a ball", "threw a ball", "throw a ball"),
        ("tossing a basketball", "tosses a ball", "was throwing a basketball", "toss the ball"),
    ),
    "standing on a table": (
        ("standing on a table", "stands on a table", "stood on a table", "stand on a table"),
        ("posing on top of a table", "stands up on the table", "got up on a table", "stand up on a table"),
    ),
    "skiing": (
        ("skiing", "skis", "skied", "ski"),
        ("skiing down a slope", "skis down a hill", "was skiing", "ski down the slope"),
        ("going down on skis", "goes down on skis", "went skiing", "ski down the hill"),
    ),
    "balancing on a beam": (
        ("balancing on a log", "balances on a log", "balanced on a log", "balance on a log"),
        ("walking on a beam", "walks on a beam", "walked along a beam", "walk along a beam"),
        ("crossing a log", "crosses a log", "was crossing a log", "cross the log"),
    ),
}

# Of each failure: third person, past, -ing.
_FAILING: dict[str, tuple[tuple[str, str, str], ...]] = {
    "trip": (
        ("trips and falls", "tripped and fell", "tripping and falling"),
        ("trips over something", "tripped over something", "tripping over something"),
        ("stumbles and faceplants", "stumbled and faceplanted", "stumbling onto the ground"),
        ("catches a foot and falls down", "caught a foot and fell down", "catching a foot and going down"),
    ),
    "slip": (
        ("slips and falls", "slipped and fell", "slipping and falling"),
        ("slips on the ground", "slipped on the ground", "slipping over"),
        ("slips and lands flat", "slipped and landed flat", "slipping and landing hard"),
        ("loses footing and slips", "lost footing and slipped", "losing footing"),
    ),
    "ball": (
        ("gets hit by a ball", "got hit by a ball", "getting hit by a ball"),
        ("is hit in the face by a ball", "was hit in the head by a ball", "taking a ball in the face"),
        ("gets a ball to the head and falls", "got a ball to the head and fell", "getting knocked down by a ball"),
    ),
    "balance": (
        ("loses balance and falls", "lost balance and fell", "losing balance and falling"),
        ("wobbles and falls over", "wobbled and fell over", "wobbling and falling over"),
        ("tips over sideways", "tipped over to the side", "tipping over"),
        ("loses balance", "lost balance", "losing the balance"),
    ),
    "off": (
        ("falls off", "fell off", "falling off"),
        ("falls off and hits the ground", "fell off and hit the ground", "falling off onto the ground"),
        ("tumbles off", "tumbled off", "tumbling off"),
        ("gets thrown off", "got thrown off", "being thrown off"),
    ),
    "dog": (
        ("gets knocked over by a dog", "got knocked over by a dog", "getting knocked over by a dog"),
        ("is knocked down by dog", "was knocked down by the dog", "being knocked down by a dog"),
        ("falls when a dog runs in", "fell when a dog ran into legs", "falling because of a dog"),
    ),
    "pole": (
        ("runs into a pole", "ran into a pole", "running into a pole"),
        ("crashes into something hard", "crashed into it", "crashing into it"),
        ("bumps into a wall and falls", "bumped into a wall and fell", "bumping into a wall"),
        ("smashes into it and falls", "smashed into it and fell", "smashing into a pole"),
    ),
    "backward": (
        ("falls backwards", "fell backwards", "falling backwards"),
        ("falls back onto the ground", "fell on the back", "falling on the back"),
        ("topples over backward", "toppled over backward", "toppling backward"),
    ),
    "drop": (
        ("drops it and falls", "dropped it and fell", "dropping it and falling"),
        ("drops it and goes down", "dropped it and went down", "letting it drop"),
        ("lets go and collapses", "let go and collapsed under it", "letting go and collapsing"),
    ),
    "chair": (
        ("falls when the chair breaks", "fell when the chair broke", "falling as the chair breaks"),
        ("falls off the chair", "fell with the chair", "falling off the chair"),
        ("lands on the floor as chair collapses", "landed on the floor with the chair", "breaking the chair"),
    ),
    "water": (
        ("falls in the water", "fell in the water", "falling in the water"),
        ("falls into the pool", "fell into the pool", "falling into the water"),
        ("ends up in the water", "ended up in the water", "splashing in the water"),
    ),
    "head": (
        ("lands on head", "landed on the head", "landing on the head"),
        ("lands on the neck", "landed on the neck", "landing wrong on the neck"),
        ("crashes upside down", "crashed down on the head", "crashing down head first"),
    ),
}

_THING_FAILS: dict[str, tuple[str, ...]] = {
    "board": ("The skateboard slides away", "skateboard shot out from under the feet", "The board flew away"),
    "scooter": ("The scooter tips over", "scooter stopped suddenly", "The scooter fell over"),
    "bicycle": ("The bike tips over", "bike crashed to the ground", "The bicycle fell"),
    "ladder": ("The ladder slips", "ladder fell over", "The ladder tips and comes down"),
    "parcel": ("The box falls on the ground", "box fell down", "The box flies away"),
    "barbell": ("The barbell falls down", "The weight was too heavy", "barbell came crashing down"),
    "chair": ("The chair breaks", "chair collapsed", "The chair tipped over"),
    "skis": ("The skis crossed", "The skis get tangled"),
}
_FAILURE_SUBJECTS: dict[str, tuple[str, ...]] = {
    "ball": ("The ball hits {him} in the head", "A ball flies in and hits {him}", "ball knocked {him} down"),
    "dog": ("The dog runs into {him}", "A dog knocks {him} over", "dog hit {him} in the legs"),
    "water": ("The water was deeper than thought", "Water splashes everywhere"),
    "pole": ("A pole was in the way", "The pole hits {him}"),
    "slip": ("The ground was wet", "The floor was too slippery"),
    "trip": ("There was something in the way",),
}

_PLACES: dict[str, tuple[str, ...]] = {
    "lawn": ("on the lawn", "in the yard", "on the grass", "in a garden", "in the backyard"),
    "street": ("on the street", "in the road", "down the street", "on a road in town"),
    "gym": ("in a gym", "in the gym", "on a court", "at the gym"),
    "beach": ("on the beach", "at the beach", "on the sand", "by the sea"),
    "snow slope": ("in the snow", "on a snowy hill", "on the slope", "in snow"),
    "parking lot": ("in a parking lot", "in the parking lot", "in a driveway", "by some cars"),
    "playground": ("at the playground", "on a playground", "by the slide"),
    "living room": ("in the living room", "in a room", "inside the house", "at home"),
    "kitchen": ("in the kitchen", "in a kitchen", "by the counter"),
    "pool side": ("by the pool", "next to a pool", "at the pool", "by a swimming pool"),
    "park": ("in the park", "in a park", "on a path", "on a trail"),
}

# Misspellings, kept as people left them; `corrections.json` of the archive lists them.
CORRECTIONS: dict[str, str] = {
    "fals": "falls",
    "wlaks": "walks",
    "balence": "balance",
    "skatebord": "skateboard",
    "ridding": "riding",
    "tryes": "tries",
    "jumpin": "jumping",
    "laddar": "ladder",
    "slipps": "slips",
    "runing": "running",
    "trys": "tries",
    "gets hitted": "gets hit",
    "pertson": "person",
    "womn": "woman",
    "grond": "ground",
    "losses": "loses",
    "boxs": "box",
    "kiks": "kicks",
    "tabel": "table",
    "chiar": "chair",
    "hes": "he's",
    "becuase": "because",
    "dacing": "dancing",
    "climing": "climbing",
    "liftng": "lifting",
}


@dataclass(frozen=True)
class Caption:
    """One worker's record: what was meant, what went wrong; either may be empty."""

    goal: str
    wentwrong: str


def _pick(rng: np.random.Generator, choices: tuple[str, ...] | list[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def _subject(rng: np.random.Generator, looks: Looks) -> str:
    child, female = looks.age == "child", looks.gender == "female"
    nouns: tuple[str, ...]
    if child:
        nouns = (
            ("girl", "little girl", "kid", "young girl", "child")
            if female
            else ("boy", "kid", "little boy", "young boy", "child")
        )
    else:
        nouns = (
            ("woman", "lady", "girl", "young woman", "person", "woman")
            if female
            else ("man", "guy", "man", "young man", "dude", "person", "guy")
        )
    noun = _pick(rng, nouns)
    draw = rng.random()
    if draw < 0.1:
        noun += _pick(
            rng,
            [
                f" in {looks.top}",
                f" in a {looks.top} shirt",
                f" wearing {looks.top}",
                f" in {looks.bottom} {looks.bottom_kind}",
            ],
        )
    if draw > 0.88:
        return "Someone" if rng.random() < 0.6 else ("She" if female else "He")
    article = "An" if noun[0] in "aeiou" else "A"
    return f"{_pick(rng, [article, article, 'The', 'The', 'This', article])} {noun}"


def _him(looks: Looks) -> tuple[str, str, str]:
    return ("she", "her", "her") if looks.gender == "female" else ("he", "him", "his")


def _careless(rng: np.random.Generator, text: str) -> str:
    """The text as typed in a hurry."""
    if rng.random() < 0.3:
        for wrong, right in CORRECTIONS.items():
            if f"{right} " in text + " " and rng.random() < 0.6:
                text = text.replace(right, wrong, 1)
                break
    if rng.random() < 0.16:
        for article in (" a ", " the "):
            if article in text:
                text = text.replace(article, " ", 1)
                break
    if rng.random() < 0.3:
        text = text[0].lower() + text[1:]
    draw = rng.random()
    if draw < 0.42:
        text += "."
    elif draw < 0.46:
        text += " ."
    elif draw < 0.48:
        text += "!"
    if rng.random() < 0.03:
        text = text.replace(" ", "  ", 1)
    return text


def _goal(rng: np.random.Generator, action: str, scene: str, looks: Looks) -> str:
    he, _, his = _him(looks)
    ing, present, past, infinitive = _DOING[action][int(rng.integers(len(_DOING[action])))]
    ing, past = ing.replace("her bicycle", f"{his} bicycle"), past
    who, place = _subject(rng, looks), _pick(rng, _PLACES[scene])
    if any(word in ing for word in ("slope", "hill")) or rng.random() < 0.3:
        place = ""
    person = (
        f"{who} is {ing} {place}",
        f"{who} {present} {place}",
        f"{who} {past} {place}",
        f"{who} tries to {infinitive} {place}",
        f"{who} wanted to {infinitive} {place}",
        f"{who} is trying to {infinitive} {place}",
        f"{who} attempts to {infinitive}",
        f"{who} was {ing} {place}",
        f"{who} {ing} {place}",
        f"{who} is going to {infinitive} {place}",
        f"{who} thought {he} could {infinitive} {place}",
        f"{who} wants to {infinitive}",
        f"{who} is outside {ing}" if scene not in ("gym", "living room", "kitchen") else f"{who} is inside {ing}",
        f"{who} decided to {infinitive} {place}",
        f"{place} {who.lower()} is {ing}" if place else f"{who} is having fun {ing}",
        f"{who} shows how to {infinitive}",
    )
    other = (f"To {infinitive} {place}", f"{ing} {place}", f"trying to {infinitive} {place}", f"There is {ing} {place}")
    text = _pick(rng, person if rng.random() < 0.86 else other)
    text = " ".join(text.split())
    return text[0].upper() + text[1:]


def _wentwrong(rng: np.random.Generator, action: str, failure: str, scene: str, looks: Looks, drops: str | None) -> str:
    he, him, his = _him(looks)
    ways = _FAILING[failure]
    present, past, ing = ways[int(rng.integers(len(ways)))]
    doing, _, _, infinitive = _DOING[action][int(rng.integers(len(_DOING[action])))]
    doing = doing.replace("her bicycle", f"{his} bicycle")
    who, place = _subject(rng, looks), _pick(rng, _PLACES[scene])
    thing = {"board": "skateboard", "scooter": "scooter", "bicycle": "bike", "ladder": "ladder"}.get(drops or "")
    if failure == "off":
        on = thing or {"standing on a table": "table", "balancing on a beam": "log"}.get(action)
        if on:
            present, past, ing = (f"{part} the {on}" if part.endswith("off") else part for part in (present, past, ing))
    if failure == "drop" and drops:
        held = {"parcel": "the box", "barbell": "the barbell"}.get(drops, "it")
        present, past, ing = (part.replace("it", held, 1) for part in (present, past, ing))
    person = (
        f"{who} {present}",
        f"{who} {past}",
        f"{who} {present} {place}",
        f"{who} {past} while {doing}",
        f"{who} ends up {ing}",
        f"{he} {present}",
        f"{he} {past} {place}",
        f"{who} {present} and gets hurt",
        f"{who} {past} and hurt {him}self",
        f"While {doing} {he} {present}",
        f"{who} couldn't {infinitive} and {past}",
        f"{who} suddenly {present}",
        f"{who} failed and {past}",
        f"{who} {present} instead",
        f"{he} didn't see it coming and {past}",
        f"{who} {past} hard {place}",
        f"but {he} {present}",
        f"{who} was {ing}",
    )
    others = (
        *_THING_FAILS.get(drops or "", ()),
        *(text.format(him=him) for text in _FAILURE_SUBJECTS.get(failure, ())),
    )
    text = _pick(rng, person if rng.random() < 0.86 or not others else others)
    return text[0].upper() + text[1:]


def two_workers(
    rng: np.random.Generator, action: str, failure: str, scene: str, looks: Looks, drops: str | None
) -> tuple[Caption, Caption]:
    """The two records of a clip; about one text in thirty is empty."""
    records = []
    for _ in range(2):
        goal = "" if rng.random() < 0.03 else _careless(rng, _goal(rng, action, scene, looks))
        wrong = "" if rng.random() < 0.03 else _careless(rng, _wentwrong(rng, action, failure, scene, looks, drops))
        records.append(Caption(goal, wrong))
    return records[0], records[1]
