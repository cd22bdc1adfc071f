"""Action or anomaly, and scene, from words first and from pixels where the words say nothing.

The paper's two attribute questions contain the video's source caption, so a table of its verbs and places answers
most of them. Where there is no source caption the re-caption stands in its place, and where neither says anything the
posture and the place do. Tables are read top down: what is told exactly stands before what is told roughly. A place
that words only hint at, by what is done there or what lies on the ground, gives way to the one that can be seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from pipeline.backends import pixel_places
from pipeline.backends import pixel_reading as reading
from pipeline.backends.protocols import BackendContext, LabelRequest, Labels

# One row: the label, then patterns of words. | parts choices, a trailing * stands for any ending, _ for a blank within
# a choice, and a blank for up to six words between.
_ANOMALIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "falling into water",
        (
            "fall*|fell|slip*|tumbl*|plung*|drop*|land*|end* in|into water|pool|lake|river|pond|sea|ocean",
            "water splash*",
            "splash* in|into water|pool|lake|river|pond|sea|ocean",
        ),
    ),
    (
        "being hit by ball",
        (
            "hit|hits|hitted|struck|smack* by|with|in ball|basketball|football",
            "get*|got|tak*|took ball to|in head|face",
            "ball hit*|strik*|smack*|land*",
        ),
    ),
    (
        "hitting head",
        (
            "hit*|bang*|bump*|smack*|bonk* head",
            "head hit*|strik*|bang*",
            "land*|crash*|com*|came on|onto head|neck",
            "land*|crash* upside_down",
        ),
    ),
    ("falling down stairs", ("fall*|fell|tumbl* down stair*|step*",)),
    ("falling off bike", ("fall*|fell|thrown off|from bike|bicycle|motorcycle|motorbike|scooter",)),
    ("falling off skateboard", ("fall*|fell off|from skateboard|board",)),
    ("falling off horse", ("fall*|fell|thrown|buck* off|from horse|bull",)),
    ("falling off ladder", ("fall*|fell|thrown off|from ladder",)),
    (
        "breaking object",
        (
            "chair|stool|table|bench|ladder|branch|rope|board|swing break|breaks|broke|snap*|collaps*",
            "break*|broke chair|stool|table|bench|ladder|branch|rope|board|swing",
        ),
    ),
    ("falling off chair", ("fall*|fell|thrown off|from|with chair", "land* floor|ground with chair")),
    ("being knocked over", ("knock* over|down by", "fall*|fell when|because dog")),
    ("having accident", ("crash*|collid*|collision|wreck*", "car|truck|bike hit*")),
    ("running into obstacle", ("run*|ran|walk*|slam*|bump*|smash* into", "pole|something|wall in_way|in_the_way")),
    ("slipping", ("slip|slips|slipped|slipping|slippery|skid*",)),
    ("tripping", ("trip|trips|tripped|tripping|stumbl*|stagger*", "catch*|caught foot")),
    ("losing grip", ("los* grip", "slip* from|out hand*")),
    (
        "losing balance",
        (
            "los* balance|footing",
            "off balance|balanc*",
            "tip|tips|tipped|tipping over|sideways",
            "wobbl*|topple*|toppling|teeter*|unbalanced",
        ),
    ),
    ("losing control", ("los* control", "out of control")),
    ("flipping", ("flip*|somersault*|cartwheel*",)),
    # What slipped from the hands comes before the fall it made.
    ("dropping object", ("drop|drops|dropped|dropping fall|falls|fell|falling",)),
    (
        "falling to the ground",
        (
            "fall*|fell|collaps*|knock* to|on|onto|down|over|backward*|flat|face ground|floor|snow|grass|mat|back|face",
            "faceplant*|face-plant*|wipe* out",
            "knock* over|down",
            "fall*|fell down|over|off|backward*|forward*|flat",
            "collaps*|tumbl*",
        ),
    ),
    ("falling", ("fall|falls|fell|falling|fallen", "thrown off")),
    ("dropping object", ("drop|drops|dropped|dropping", "spill*", "fly|flies|flew|flying away")),
    ("breaking object", ("break*|broke|broken|snap*|shatter*|rip*|tear*|tore",)),
    ("getting stuck", ("stuck|tangled|trapped",)),
    ("missing", ("miss|misses|missed|missing", "fail* to catch|hit|land|reach")),
    ("being kicked", ("kicked",)),
    ("being pushed", ("push*|shov*|pull*",)),
    ("being hit", ("hit|hits|struck|smack*|whack*|punch*",)),
    ("jumping", ("jump*|leap*|hop|hops|hopped",)),
    ("flipping", ("upside down",)),
    ("falling", ("go* down",)),
)
_ACTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("playing basketball", ("basketball|hoop|hoops|dunk*", "shoot* basket")),
    ("playing football", ("football|soccer",)),
    ("playing baseball", ("baseball",)),
    ("playing golf", ("golf*",)),
    ("playing tennis", ("tennis",)),
    ("arm wrestling", ("arm wrestl*",)),
    ("wrestling", ("wrestl*",)),
    ("skateboarding", ("skateboard*|skate|skates|skating",)),
    ("riding scooter", ("scooter*",)),
    ("motorcycling", ("motorcycl*|motorbike|dirtbike|dirt_bike",)),
    ("cycling", ("bike|bikes|biking|bicycle*|cycl*",)),
    ("riding horse", ("rid*|rode horse|pony|bull", "horse")),
    ("skiing", ("ski|skis|skied|skiing",)),
    ("snowboarding", ("snowboard*",)),
    ("sledding", ("sled*|sledg*|toboggan*",)),
    ("surfing", ("surf|surfs|surfing|surfer|surfboard*",)),
    ("diving", ("div*|dove in*|into|off",)),
    ("swimming", ("swim*|swam",)),
    ("somersaulting", ("somersault*|flip|flips|flipping|backflip*|frontflip*",)),
    ("cartwheeling", ("cartwheel*",)),
    ("doing handstand", ("handstand*",)),
    ("lifting weights", ("lift* weight*|barbell|dumbbell*", "weightlift*|deadlift*|bench_press")),
    ("doing gymnastics", ("gymnast*|balance_beam|trapeze|tumbl*",)),
    ("jumping on trampoline", ("trampoline*",)),
    ("jumping rope", ("jump* rope", "skip* rope")),
    ("driving car", ("drive|drives|driving|drove",)),
    ("fishing", ("fish|fishes|fishing",)),
    ("cleaning pool", ("clean* pool",)),
    ("cleaning", ("clean*|sweep*|mop|mops|mopping|wash*",)),
    ("cooking", ("cook*|bak*|fry*|fries",)),
    ("dancing", ("danc*|twerk*",)),
    ("doing karate", ("karate|martial_arts",)),
    ("climbing", ("climb*|climing", "up ladder")),
    ("crawling", ("crawl*|hands_and_knees|all_fours",)),
    ("kicking", ("kick*",)),
    ("punching", ("punch*|boxing|boxer|sparring", "hit|hits|hitting bag")),
    ("spinning", ("spin*|spun|twirl*|whirl*",)),
    ("rolling", ("roll|rolls|rolled|rolling",)),
    ("swinging", ("swing*|swung",)),
    ("sliding", ("slid*",)),
    ("running", ("run|runs|ran|running|jog*|sprint*",)),
    ("jumping", ("jump*|leap*|hop|hops|hopped|hopping",)),
    ("throwing", ("throw*|threw|toss*",)),
    ("catching", ("catch*|caught",)),
    ("hugging", ("hug|hugs|hugged|hugging|embrac*",)),
    (
        "greeting",
        (
            "greet*",
            "shak* hand*",
            "wave|waves|waved|waving",
        ),
    ),
    ("carrying object", ("carr*", "bring*|mov* box|boxes|package|bag")),
    (
        "lifting object",
        (
            "lift|lifts|lifting",
            "pick* up",
        ),
    ),
    ("pushing object", ("push*",)),
    ("pulling object", ("pull*",)),
    ("balancing", ("balanc*", "cross* log|beam|rope")),
    ("walking", ("walk*|stroll*|step|steps|stepped|stepping",)),
    (
        "exercising",
        (
            "exercis*|workout|stretches|stretching|push-up*|pushup*",
            "work* out",
        ),
    ),
    ("riding", ("ride|rides|rode|riding",)),
    ("playing", ("play|plays|played|playing",)),
    ("eating", ("eat*|ate|drink*|drank",)),
    ("bending over", ("bend*|bent over|down|forward", "lean* over")),
    ("sitting", ("sit|sits|sat|sitting|crouch*|kneel*|knelt|squat*", "rest*|lean* chair")),
    ("lying", ("lie|lies|lying|laying|lay",)),
    ("standing", ("stand|stands|stood|standing|pose|poses|posed|posing", "got|get* up on")),
    ("talking", ("talk*|speak*|sing|sings|singing",)),
)
_SCENES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("swimming pool", ("pool|swimming-pool|poolside",)),
    ("gym", ("gym|gymnasium",)),
    ("parking lot", ("parking|carpark|car-park|car_park",)),
    ("ski slope", ("slope|slopes|piste",)),
    ("living room", ("living_room|livingroom|lounge|couch|sofa",)),
    ("kitchen", ("kitchen|stove|oven|counter",)),
    ("bedroom", ("bedroom|bed",)),
    ("bathroom", ("bathroom|shower|bathtub|toilet",)),
    ("stairs", ("stair|stairs|staircase|stairway",)),
    ("restaurant", ("restaurant|bar|cafe|diner|pub",)),
    ("office", ("office",)),
    ("classroom", ("classroom|school",)),
    ("shop", ("shop|store|supermarket|market|mall",)),
    ("church", ("church|wedding|altar",)),
    ("stage", ("stage|theatre|theater",)),
    ("playground", ("playground|swing_set|the_slide|swings|seesaw|monkey_bars",)),
    ("skate park", ("skatepark|skate_park|halfpipe|half-pipe|skateboard_ramp",)),
    ("trampoline", ("trampoline*",)),
    ("beach", ("beach|sand|seaside|shore",)),
    ("sea", ("sea|ocean|surfing|surfer|surfboard*|waves",)),
    ("lake", ("lake|pond|dock|pier",)),
    ("river", ("river|creek|stream|waterfall",)),
    ("boat", ("boat|canoe|kayak|raft",)),
    ("frozen lake", ("frozen|ice_skat*",)),
    ("ice", ("ice|icy|rink",)),
    ("snowy ground", ("snow|snowy|sled*|snow-like",)),
    ("highway", ("highway|freeway|motorway",)),
    ("driveway", ("driveway",)),
    ("street", ("street|road|sidewalk|pavement|crosswalk|alley",)),
    ("sports field", ("stadium|pitch|field",)),
    ("golf course", ("golf course",)),
    ("race track", ("track|racetrack|race",)),
    ("forest", ("forest|woods|tree|trees",)),
    ("park", ("park",)),
    ("court", ("court",)),
    ("path", ("path|trail",)),
    ("farm", ("farm|barn|stable|pasture",)),
    ("lawn", ("lawn|grass|grassy|yard|backyard|garden|meadow",)),
    ("hill", ("hill|hillside|cliff|mountain*|rock|rocks",)),
    ("roof", ("roof|rooftop",)),
    ("garage", ("garage|workshop",)),
    ("house", ("house|porch|home",)),
    ("room", ("room",)),
)
# A place told only by what is done or used there, or by water, which may be any: less sure than what is seen.
_SCENE_HINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("water", ("water|splash*",)),
    ("ski slope", ("ski|skis|skiing|skied|snowboard*",)),
    ("basketball court", ("basketball|hoops|dunk*",)),
    ("sports field", ("football|soccer|baseball",)),
    ("golf course", ("golf*",)),
    ("gym", ("treadmill|barbell|weights|dumbbell*",)),
)

_STANCE_ACTIONS = {
    "standing": "standing",
    "upright": "standing",
    "leaning": "leaning to one side",
    "bent": "bending over",
    "low": "sitting or crouching",
    "lying": "lying",
    "upside_down": "doing handstand",
}
_STANCE_ANOMALIES = {
    "leaning": "losing balance",
    "bent": "losing balance",
    "low": "falling",
    "lying": "falling to the ground",
    "upside_down": "flipping",
}
# What a re-caption says of the ground alone is no more than a reader of pixels sees, who looks at more than the ground.
_BARE_GROUNDS = ("lawn", "snowy ground")
_LONGEST_GAP = 6
# Ground that lies or stretches somewhere says nothing of what somebody does.
_GROUND_LIES = re.compile(
    r"(?<= )(ground|floor|surface|grass|lawn|snow|water|sand|road|path|field|background|backdrop)"
    r" (?:lies|lay|stretches)(?= |$)"
)
# OOPS! keeps its workers' spelling: errors that would hide a word of the tables.
_SPELLINGS = {
    "balence": "balance",
    "ballance": "balance",
    "bicicle": "bicycle",
    "boxs": "boxes",
    "chiar": "chair",
    "fals": "falls",
    "fallls": "falls",
    "jumpes": "jumps",
    "laddar": "ladder",
    "playgrond": "playground",
    "poool": "pool",
    "ridding": "riding",
    "runing": "running",
    "skatebord": "skateboard",
    "skatebording": "skateboarding",
    "slipps": "slips",
    "trampolene": "trampoline",
    "tramploline": "trampoline",
    "wlaks": "walks",
    "wlaking": "walking",
}


class PixelLabeller:
    """`Labeller` by tables of words, then by posture and place."""

    name = "pixels"
    revision = "2"

    def __init__(self, context: BackendContext) -> None:
        """No setting is read and nothing is loaded."""

    def label(self, requests: Sequence[LabelRequest]) -> list[Labels]:
        """One answer a request, in order: lower case, no punctuation; None where nothing tells."""
        return [_label_one(request) for request in requests]


def _label_one(request: LabelRequest) -> Labels:
    question = "anomaly" if request.behavior == "anomaly" else "action"
    told = request.source_caption if request.source_caption and request.source_caption.strip() else None
    words = told if told is not None else request.caption
    behavior = anomaly_in(words) if question == "anomaly" else action_in(words)
    if question == "anomaly" and behavior is None:
        behavior = action_in(words) if told is not None else None
    if behavior is None:
        behavior = _behavior_seen(request, question)
    scene = _scene_of(told, request)
    return Labels(behavior=behavior, scene=scene, raw={question: behavior or "", "scene": scene or ""})


def _behavior_seen(request: LabelRequest, question: str) -> str | None:
    if not request.persons:
        return None
    height, width = request.image.shape[:2]
    posture = reading.read_posture(request.persons[0], width, height)
    if question == "anomaly":
        return _STANCE_ANOMALIES.get(posture.stance or "")
    if posture.on_all_fours:
        return "crawling"
    if posture.stance in ("standing", None) and posture.arms == "both_raised":
        return "raising arms"
    if posture.stance == "standing" and posture.legs in ("apart", "one_raised"):
        return "walking" if posture.legs == "apart" else "lifting leg"
    return _STANCE_ACTIONS.get(posture.stance or "")


def _scene_of(told: str | None, request: LabelRequest) -> str | None:
    """The place by the surest that names one: source caption, re-caption, picture, then what either text hints at."""
    named = _first(_SCENES, told) if told is not None else None
    if named is not None:
        return named
    retold = _first(_SCENES, request.caption)
    if retold is not None and retold not in _BARE_GROUNDS:
        return retold
    seen = pixel_places.place_in(request.image, request.persons)
    return seen or (scene_in(told) if told is not None else None) or scene_in(request.caption)


def anomaly_in(text: str) -> str | None:
    """The anomaly a sentence tells of, by the table; None where it tells of none."""
    return _first(_ANOMALIES, text)


def action_in(text: str) -> str | None:
    """The action a sentence tells of, by the table; None where it tells of none."""
    return _first(_ACTIONS, text)


def scene_in(text: str) -> str | None:
    """The place a sentence names, else the one it hints at, by the tables; None where it does neither."""
    return _first(_SCENES, text) or _first(_SCENE_HINTS, text)


def _first(table: tuple[tuple[str, tuple[str, ...]], ...], text: str) -> str | None:
    words = " ".join(re.findall(r"[^\W_]+(?:-[^\W_]+)*", text.lower().replace("’", "").replace("'", "")))
    words = " ".join(_SPELLINGS.get(word, word) for word in words.split(" "))
    words = _GROUND_LIES.sub(r"\1", f" {words}")[1:]
    for label, patterns in table:
        if any(_compiled(pattern).search(words) for pattern in patterns):
            return label
    return None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """A table pattern as an expression over words joined by blanks."""
    steps = []
    for step in pattern.split(" "):
        choices = [
            re.escape(choice[:-1]) + r"[^ ]*" if choice.endswith("*") else re.escape(choice)
            for choice in step.replace("_", " ").split("|")
        ]
        steps.append(f"(?:{'|'.join(choices)})")
    gap = rf" (?:[^ ]+ ){{0,{_LONGEST_GAP}}}?"
    return re.compile(r"(?:^|(?<= ))" + gap.join(steps) + r"(?= |$)")
