"""Greetings, thanks, partings, remarks that need no memory, and questions nobody here can answer."""

from __future__ import annotations

from random import Random

from models.tiny.dialogue import Exchange, Memory
from models.tiny.manner import casually
from models.tiny.phrasing import Phrases, pick
from models.tiny.words import ANIMALS, CITIES, FOODS, OBJECTS, PLACES


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in text.split(";"))


_WHO = _phrases(
    """
    my brother;my sister;my friend;my mother;my father;my uncle;my aunt;the neighbour;the teacher;an old man;a child;
    the dog;a bird;my cousin;a tourist;the baker;the woman next door;our cat;a student;the driver
    """
)
_DID = _phrases(
    """
    walked to;ran to;went to;drove to;came from;looked at;painted;cleaned;visited;talked about;dreamed of;waited at;
    sat in;worked in;sang in;slept in;played in;stood in front of;found something in;forgot something in
    """
)
_WHEN = _phrases(
    """
    yesterday;today;this morning;last night;last week;in the evening;at noon;after lunch;before dinner;on the weekend;
    all day;again;for an hour;two days ago;in the rain;in the sun
    """
)
_ACTS = _phrases(
    """
    read a book;cooked soup;baked a cake;fixed the roof;watched the birds;watered the flowers;played chess;
    wrote a letter;washed the car;listened to music;made tea;went for a walk;swam in the lake;sorted old pictures;
    cut the grass;fed the ducks;built a shelf;learned a song;drew a map;took a nap
    """
)
_GOOD = Phrases(
    "[The weather|The day|The evening|The morning|The music|The food] [is|was] [nice|good|great|lovely][ today|].",
    "The view [is|was] [nice|good|great|lovely|wonderful][ today| here|].",
    "[I feel|I am|I'm] [happy|great|good|fine|very well][ today| now|].",
    "I [love|like|enjoy] [the sun|the sea|music|long walks|the rain|warm bread|old songs|the snow|reading|cooking].",
    "I [love|like] [you|it|this|that|my garden|our house|the view][ very much| a lot|].",
    "[We had|I had|It was] a [good|great|nice|lovely|wonderful] [day|time|trip|party|dinner].",
)
_BAD = Phrases(
    "[I feel|I am|I'm] [tired|sad|sick|ill|bored|cold|angry|hungry|lonely][ today| now|].",
    "I lost my [keys|phone|bag|hat|ticket|umbrella|wallet].",
    "[The train|The bus|The plane|My friend] [is|was] late[ again| today|].",
    "[My head|My back|My foot|My tooth] hurts[ today| again|].",
    "[The weather|The day|The food|The film] [is|was] [bad|awful|terrible][ today|].",
)
_OWN = Phrases(
    "[I|We] [bought|found|sold|made|saw|need|want|broke|cleaned|opened] [a|the|an old|a new] {thing}[ {when}|].",
    "[I|We] [will buy|must find|want to sell|have seen] [a|the|an old|a new] {thing}[ {when}|].",
)
_GREET = Phrases("[Hi|Hello|Hey|Hello there|Hi there|Hey there|Greetings|Good day][!|.|]", "[Hi|Hello], Brim[!|.]")
_TIMED = ("morning", "evening", "afternoon", "night")
_HOW = Phrases(
    "How are you[?| today?| doing?|]",
    "[Hi|Hello|Hey][,|!] how are you[?| today?| doing?]",
    "[How is it going|How do you do|Are you well|Are you okay|How do you feel][?|]",
)
_THANK = Phrases(
    "[Thanks|Thank you|Thanks a lot|Thank you very much|Many thanks|Great, thanks|Okay, thank you][!|.|]",
    "[Thanks|Thank you] for [your help|the help|that|the answer][!|.]",
)
_PRAISE = Phrases(
    "[Good|Great|Nice|Well done|Very good|Perfect|Correct|That is right|Right|Excellent|Good job|You are right][!|.|]"
)
_PART = Phrases(
    "[Bye|Goodbye|Bye bye|See you|See you later|See you soon|Good bye|I have to go|I must go now|Until tomorrow][!|.|]"
)
_ABILITY = Phrases(
    "What can you do[?| for me?|]", "[Can|Could|Will] you help me[?|]", "[How can you help|What are you good at][?|]"
)
_SELF = Phrases(
    "What are you[?|]",
    "Are you [a robot|a human|a person|a machine|a language model|real|alive|an assistant][?|]",
    "[Who|What] [made|built|trained] you[?|]",
)
_ABOUT_SELF = Phrases(
    "What is your [favourite |][colour|food|number|animal|city|sport|age|job|dream|hobby]?",
    "[How old are you|Where do you live|Where are you from|What do you like|Are you happy|Do you sleep][?|]",
    "Do you [like|love|know|understand|hate] [me|music|{food}|{animal}s|the sun|people|{city}][?|]",
)
_TOO_HARD = Phrases(
    "[Tell me|Write|Can you tell me|Make up] a [joke|story|poem|song|tale][ about a {animal}| about {city}|][.|?|]",
    "[Translate|Explain|Summarise|Draw|Spell] [the {thing}|this {thing}|a {animal}|{city}][.|, please.|]",
    "[Write|Make|Draw] [me |]a [letter|program|list|picture|plan] [for|about] [the {thing}|{city}|my {animal}][.|]",
)
_ASSENT = Phrases("[Okay|Ok|Yes|No|Sure|Fine|I see|All right|Alright|Hm|Aha|Maybe][.|!|]")
_UNANSWERABLE = Phrases(
    "[Who|When was the man who] [invented|built|discovered|painted|wrote] [the {thing}|the first {thing}|a {thing}]?",
    "[How far|How high|How large|How old|How deep] is [the moon|the sun|the sea|{city}|the {thing}]?",
    "[Why|How] [do|can] [birds|fish|people|{animal}s|stars|clouds] [fly|swim|sing|sleep|shine|move]?",
    "[What will the weather be|What happens|Who wins|What is on the news] [tomorrow|next week|next year]?",
    "[How many|Which] [people|animals|trees|roads] [live|are] in {city}?",
    "[What time|What year|What day|How late] is it[ now| today|]?",
    "[How do I|How can I|Can you help me to] [cook {food}|fix the {thing}|learn a language|buy a {thing}]?",
    "[Who|What] [is|was] the [first|best|fastest|largest|oldest] [king|{animal}|{thing}|singer|city]?",
)


def statement(rng: Random) -> str:
    """Something that happened to somebody."""
    who = pick(rng, _WHO)
    who = who[0].upper() + who[1:]
    if rng.random() < 0.5:
        return f"{who} {pick(rng, _ACTS)} {pick(rng, _WHEN)}."
    return f"{who} {pick(rng, _DID)} the {pick(rng, PLACES)} {pick(rng, _WHEN)}."


def remark(rng: Random, memory: Memory) -> Exchange:
    """A remark, and a short word for it."""
    kind = rng.random()
    if kind < 0.2:
        return Exchange(casually(rng, _GOOD.say(rng)), "That sounds nice.")
    if kind < 0.4:
        return Exchange(casually(rng, _BAD.say(rng)), "I am sorry to hear that.")
    if kind < 0.5:
        return Exchange(f"I saw a {pick(rng, ANIMALS)} near the {pick(rng, PLACES)} {pick(rng, _WHEN)}.", "I see.")
    if kind < 0.6:
        return Exchange(
            casually(rng, f"{pick(rng, ('I', 'We', 'They'))} {pick(rng, _ACTS)} {pick(rng, _WHEN)}."), "I see."
        )
    if kind < 0.7:
        return Exchange(casually(rng, _OWN.say(rng, thing=pick(rng, OBJECTS), when=pick(rng, _WHEN))), "I see.")
    return Exchange(" ".join(statement(rng) for _ in range(pick(rng, (1, 1, 1, 2, 3)))), "I see.")


def courtesy(rng: Random, memory: Memory) -> Exchange:
    """Greetings, thanks and partings, each with the same answer always."""
    kind = rng.random()
    if kind < 0.1:
        part = pick(rng, _TIMED)
        answer = "Good night!" if part == "night" else f"Good {part}! How can I help you?"
        return Exchange(casually(rng, f"Good {part}{pick(rng, '.!')}"), answer)
    phrases, answer = pick(
        rng,
        (
            (_GREET, "Hello! How can I help you?"),
            (_GREET, "Hello! How can I help you?"),
            (_HOW, "I am fine, thank you."),
            (_THANK, "You are welcome."),
            (_PRAISE, "Thank you."),
            (_PART, "Goodbye!"),
            (_ABILITY, "I can remember what you tell me, do small sums, repeat texts, count, and say days and months."),
            (_SELF, "I am a tiny language model."),
            (_ASSENT, "Okay."),
        ),
    )
    return Exchange(casually(rng, phrases.say(rng)), answer)


def ask_about_self(rng: Random, memory: Memory) -> Exchange:
    """Questions about the assistant that have one answer: what it is."""
    user = _ABOUT_SELF.say(rng, food=pick(rng, FOODS), animal=pick(rng, ANIMALS), city=pick(rng, CITIES))
    return Exchange(casually(rng, user), "I am a tiny language model.")


def unanswerable(rng: Random, memory: Memory) -> Exchange:
    """What such a small model knows nothing of, and what it cannot do."""
    phrases, answer = (_UNANSWERABLE, "I don't know that.") if rng.random() < 0.7 else (_TOO_HARD, "I can't do that.")
    user = phrases.say(
        rng,
        thing=pick(rng, OBJECTS),
        city=pick(rng, CITIES),
        animal=pick(rng, ANIMALS),
        food=pick(rng, FOODS),
    )
    return Exchange(casually(rng, user), answer)
