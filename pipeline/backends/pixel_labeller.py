"""Action or anomaly, and scene, from words first and from pixels where the words say nothing.

The paper's two attribute questions contain the video's source caption, so a table of its verbs and places answers
most of them. Where there is no source caption the re-caption stands in its place, and where neither says anything the
posture and the ground do. Tables are read top down: what is told exactly stands before what is told roughly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

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
        ),
    ),
    ("hitting head", ("hit*|bang*|bump*|smack*|bonk* head", "head hit*|strik*|bang*", "land* on head|neck")),
    (
        "being hit by ball",
        (
            "hit|hits|hitted|struck|smack* by|with|in ball|basketball|football",
            "get*|got|tak*|took ball to|in head|face",
            "ball hit*|strik*|smack*|land*",
        ),
    ),
    ("falling down stairs", ("fall*|fell|tumbl* down stair*|step*",)),
    ("falling off bike", ("fall*|fell|thrown off|from bike|bicycle|motorcycle|motorbike|scooter",)),
    ("falling off skateboard", ("fall*|fell off|from skateboard|board",)),
    ("falling off horse", ("fall*|fell|thrown|buck* off|from horse|bull",)),
    ("falling off ladder", ("fall*|fell|thrown off|from ladder",)),
    ("falling off chair", ("fall*|fell|thrown off|from chair", "land* floor with chair")),
    ("being knocked over", ("knock* over|down by", "fall*|fell when dog")),
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
    ("driving car", ("driv*|drove car|truck|vehicle|kart|cart", "driv*|drove")),
    ("fishing", ("fish|fishes|fishing",)),
    ("cleaning pool", ("clean* pool",)),
    ("cleaning", ("clean*|sweep*|mop|mops|mopping|wash*",)),
    ("cooking", ("cook*|bak*|fry*|fries",)),
    ("dancing", ("danc*|twerk*",)),
    ("doing karate", ("karate|martial_arts",)),
    ("climbing", ("climb*|climing", "up ladder")),
    ("crawling", ("crawl*",)),
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
    ("carrying object", ("carr*", "bring*|mov* box|package|bag")),
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
    ("parking lot", ("parking|carpark|car-park|some_cars",)),
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
    ("street", ("street|road|sidewalk|pavement|crosswalk|driveway|alley",)),
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
    ("water", ("water|splash*",)),
    # Told only by what people do there.
    ("ski slope", ("ski|skis|skiing|skied|snowboard*",)),
    ("basketball court", ("basketball|hoops|dunk*",)),
    ("sports field", ("football|soccer|baseball",)),
    ("golf course", ("golf*",)),
    ("gym", ("treadmill|barbell|weights|dumbbell*",)),
)

_STANCE_ACTIONS = {
    "standing": "standing",
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
_SURFACE_SCENES = {"grass": "lawn", "snow": "snowy ground", "water": "water"}
_LONGEST_GAP = 6
# OOPS! keeps its workers' spelling: errors that would hide a word of the tables.
_SPELLINGS = {
    "balence": "balance",
    "ballance": "balance",
    "bicicle": "bicycle",
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
    """`Labeller` by tables of words, then by posture and ground."""

    name = "pixels"
    revision = "1"

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
    scene = scene_in(words)
    if scene is None:
        scene = scene_in(request.caption) if told is not None else None
    if scene is None:
        scene = _scene_seen(request)
    return Labels(behavior=behavior, scene=scene, raw={question: behavior or "", "scene": scene or ""})


def _behavior_seen(request: LabelRequest, question: str) -> str | None:
    if not request.persons:
        return None
    height, width = request.image.shape[:2]
    posture = reading.read_posture(request.persons[0], width, height)
    if question == "anomaly":
        return _STANCE_ANOMALIES.get(posture.stance or "")
    if posture.stance in ("standing", None) and posture.arms == "both_raised":
        return "raising arms"
    if posture.stance == "standing" and posture.legs in ("apart", "one_raised"):
        return "walking" if posture.legs == "apart" else "lifting leg"
    return _STANCE_ACTIONS.get(posture.stance or "")


def _scene_seen(request: LabelRequest) -> str | None:
    place = reading.read_place(reading.as_rgb(request.image), request.persons)
    if place.surface:
        return _SURFACE_SCENES[place.surface]
    return "outdoors" if place.sky else None


def anomaly_in(text: str) -> str | None:
    """The anomaly a sentence tells of, by the table; None where it tells of none."""
    return _first(_ANOMALIES, text)


def action_in(text: str) -> str | None:
    """The action a sentence tells of, by the table; None where it tells of none."""
    return _first(_ACTIONS, text)


def scene_in(text: str) -> str | None:
    """The place a sentence tells of, by the table; None where it tells of none."""
    return _first(_SCENES, text)


def _first(table: tuple[tuple[str, tuple[str, ...]], ...], text: str) -> str | None:
    words = " ".join(re.findall(r"[^\W_]+(?:-[^\W_]+)*", text.lower().replace("’", "").replace("'", "")))
    words = " ".join(_SPELLINGS.get(word, word) for word in words.split(" "))
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
