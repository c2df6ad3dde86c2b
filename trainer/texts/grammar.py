"""Writes the text that ships: short stories from a small grammar, the same on every machine.

Enough structure for a small model to learn within a minute (spelling, then words, then the order of sentences
and which name comes back), and no one's copyright.
"""

from __future__ import annotations

import random
from pathlib import Path

STORIES = 420
SEED = 20
TEXT_FILE = Path(__file__).with_name("workshop.txt")

NAMES = ("Ada", "Bruno", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas")
TRADES = ("baker", "clockmaker", "gardener", "printer", "tailor", "carpenter", "potter", "glazier")
TOWNS = ("the harbour", "the old town", "the river bend", "the north gate", "the long bridge")
THINGS = {
    "baker": ("loaf", "oven", "basket of rolls", "sack of flour"),
    "clockmaker": ("spring", "pocket watch", "pendulum", "brass wheel"),
    "gardener": ("rose bush", "watering can", "pear tree", "row of beans"),
    "printer": ("press", "poster", "tray of letters", "sheet of paper"),
    "tailor": ("coat", "bolt of cloth", "silver needle", "button"),
    "carpenter": ("chair", "oak plank", "door frame", "box of nails"),
    "potter": ("jug", "wheel", "glazed bowl", "lump of clay"),
    "glazier": ("window", "pane of glass", "lead strip", "lantern"),
}
TIMES = ("In the morning", "At noon", "Late in the evening", "Before the rain", "On market day")
FAULTS = ("was broken", "was missing", "did not fit", "had a crack", "was too heavy to lift")
REMEDIES = ("mended it", "made a new one", "asked for help", "tried again", "put it aside")
ENDINGS = (
    "By nightfall the work was done.",
    "Nobody spoke of it again.",
    "The next day there was twice as much to do.",
    "It took three days, and it held for thirty years.",
    "From then on the door stood open.",
)


def _story(draw: random.Random) -> str:
    first, second = draw.sample(NAMES, 2)
    trade = draw.choice(TRADES)
    thing = draw.choice(THINGS[trade])
    sentences = [
        f"{first} was a {trade} near {draw.choice(TOWNS)}.",
        f"{draw.choice(TIMES)} {first} found that the {thing} {draw.choice(FAULTS)}.",
        f"So {first} went to see {second}, who knew a good deal about every {thing}.",
        f'"{draw.choice(TIMES)} it is always the same," said {second}.',
        f"{first} listened, went back, and {draw.choice(REMEDIES)}.",
    ]
    if draw.random() < 0.5:
        sentences.append(f"{second} came by with another {draw.choice(THINGS[trade])} for the {trade}.")
    sentences.append(draw.choice(ENDINGS))
    return " ".join(sentences)


def write_text(stories: int = STORIES, seed: int = SEED) -> str:
    """Stories separated by blank lines; the defaults give the file that ships."""
    draw = random.Random(seed)
    return "\n\n".join(_story(draw) for _ in range(stories)) + "\n"
