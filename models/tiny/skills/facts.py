"""Telling, asking, correcting: answers that come from the conversation, and "I don't know" where it has none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from models.tiny.dialogue import Exchange, Fact, Memory
from models.tiny.manner import casually, chattily
from models.tiny.phrasing import Phrases, capitalised, pick
from models.tiny.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    COUNTRIES,
    DAYS,
    FOODS,
    JOBS,
    MONTHS,
    OBJECTS,
    PLACES,
    SHOPPING,
    SPORTS,
    any_code,
    any_name,
    any_number,
    any_word,
    listed,
)

Values = Callable[[Random], str]

TELL = Phrases(
    "{clause}.",
    "{clause}[.|!|]",
    "[Hi|Hello|Hey][,| there,|!] {clause}.",
    "[Please |]remember[ that| this:|:|] {clause}.",
    "[Please note|Note|Remember|Know|You should know|I want you to know|Keep in mind|Do not forget] that {clause}.",
    "[By the way|Also|Oh|Well|So|And|Listen], {clause}.",
    "I [want|wanted|would like] to tell you [something|one thing]: {clause}.",
    "[One more thing|Something about me|A fact|Important|For later|Note]: {clause}.",
    "[Did you know that|Guess what,] {clause}!",
    "I think I told nobody yet that {clause}.",
    "[It is|It's] [important|good|useful|nice|true|a fact|no secret] that {clause}.",
    "[What you should|What you must|What you need to|All you have to] [know|remember] is that {clause}.",
    "[Let us|Let's|We can|You can|I will] [begin with|start with|say] this: {clause}.",
    "[Write down|Store|Save|Take note|Learn|Memorise][:| this:| that] {clause}.",
    "[As you know|As I said|In fact|Actually|For the record|To be clear|First|Today|In my life][,|] {clause}.",
    "I am [happy|glad|sure|here] to [say|tell you|report|share] that {clause}.",
    "{clause}[, just so you remember|, please remember that|, remember it|, do not forget|, you know|, by the way].",
    "[Here is|This is] [a fact|something|one thing|some information|my secret][ about me| for you|][:|.] {clause}.",
    "[My friends say|Everybody knows|People know|You will see] that {clause}.",
)
_CORRECT = Phrases(
    "[Actually|No|Wait|Sorry|Oh no|Correction][,|:] {clause}.",
    "I was wrong[.|:|,] {clause}[ now|].",
    "[That|It] has changed[.|:] [Now |]{clause}.",
    "[Sorry, I|I] made a mistake[.|:] {clause}.",
    "From now on[,|] {clause}.",
)
_CORRECT_IT = Phrases(
    "[Actually|No|Wait|Sorry|Oh no|Correction|Well][,|] it is {v}[ now|].",
    "[No, |Sorry, |]I meant {v}.",
    "It is {v} now.",
    "[Make that|Change it to|No, it is] {v}.",
)
_FORGET = Phrases(
    "[Forget|Please forget|You can forget|Do not remember] {it}[.|, please.|]",
    "[I want you to|You should] forget {it}[.|]",
)
_RECAP = Phrases(
    "What do you know about me?",
    "[Tell me|Say] what you know[ about me| so far|].",
    "What [did|have] I [tell you|told you][ so far|]?",
    "[List|Name|Repeat] [everything|all] [that |]I told you.",
)
_SAME = Phrases("Is it true that {clause}?", "[Do you think|Did I say] that {clause}?", "{clause}, right?")


def possessive(owner: str, yours: str, theirs: str, noun: str, values: Values, tells: Phrases | None = None) -> Fact:
    """A fact with a name: *my favourite colour*, *Anna's dog*, *the password*."""
    mine, whose = f"{owner} {noun}", f"{yours} {noun}"
    return Fact(
        key=whose,
        mine=f"{mine} is {{v}}",
        yours=f"{whose} is {{v}}",
        theirs=f"{theirs} {noun} is {{v}}",
        unknown=whose,
        values=values,
        asks=Phrases(
            f"What [is|was] {mine}[?| again?| now?]",
            f"What's {mine}[?|]",
            f"[Please tell|Tell] me {mine}[.|, please.|]",
            f"[Can|Could|Would|Will] you [please |]tell me {mine}?",
            f"[Can|Could] you [please |]tell me what {mine} is?",
            f"Do you [still |][know|remember] {mine}?",
            f"Do you [still |][know|remember] what {mine} [is|was]?",
            f"I forgot {mine}. [What is it|What was it|Do you know it]?",
            f"What did I [say|tell you][ that|] {mine} [is|was]?",
            f"[And what is|And|So what is|Now, what is|Quick question: what is|Question: what is] {mine}?",
            f"[Say|Name|Give me|Repeat] {mine}[.|, please.|]",
            f"{capitalised(mine)}[?| is what?| is ...?]",
            f"[Do you know|Tell me|Say] what {mine} is[?|]",
            f"[Please |]answer this: what is {mine}?",
            f"I [want|need|have|wish] to know [what {mine} is|{mine}][.|]",
            f"[Any idea|Are you able to say|Do you have an idea] what {mine} [is|was]?",
            f"What [have|had] I [said|told you][ about| is|] {mine}?",
            f"[Remind me|Inform me|Let me know|Let me hear|Show me|Help me remember][:| of| what|] {mine}[ is|][?|.|]",
            f"[I told you|I mentioned|I gave you|You know|You heard|You learned] {mine}[. What|, what] [is|was] it?",
            f"[Which one|Which|What exactly|What, then,] is {mine}?",
            f"[I cannot|I can't|I do not|I don't] [remember|recall|know] {mine}[.|, can you help?|. What is it?|]",
            f"[What would you say|What do you think|Who knows what|Guess what|Be so kind: what] {mine} is[?|]",
            f"[Fill in|Complete|Finish this]: {mine} is[ ...|...|]",
            f"[Earlier|Before|At first|A while ago][,|] I [told|gave] you {mine}. [What is it|What was it|Which is it]?",
            f"[Do you recall|Do you still have|Have you kept|Have you got|Did you note|Can you recall] {mine}?",
        ),
        tells=tells,
    )


def mine(noun: str, values: Values) -> Fact:
    return possessive("my", "your", "the user's", noun, values)


def favourite(kind: str, values: Values, adjective: str = "favourite") -> Fact:
    """What the user likes best of a kind."""
    plain = mine(f"{adjective} {kind}", values)
    best = Phrases(
        f"[Which|What] {kind} do I [like|love|prefer][ best| most|][?|]", f"[Which|What] is the {kind} I like[ best|]?"
    )
    tells = Phrases(
        "I [like|love] {v} [best|most|the most].",
        f"I [like|love|prefer] the {kind} {{v}}[ best| most|].",
        f"The {kind} I [like|love] [best|most] is {{v}}.",
        f"{{v}} is my {adjective} {kind}.",
    )
    return replace(plain, asks=plain.asks | best, tells=tells)


def called(noun: str) -> Fact:
    """The name of somebody of the user's."""
    return Fact(
        f"your {noun}",
        f"my {noun} is called {{v}}",
        f"your {noun} is called {{v}}",
        f"the user's {noun} is called {{v}}",
        f"the name of your {noun}",
        Phrases(
            f"What is [the name of my {noun}|my {noun} called|my {noun}'s name][?| again?|]",
            f"[How is|What is] my {noun} called[?|]",
            f"Who is my {noun}[?|]",
            f"[Do you know|Do you remember|Tell me|Say|I want to know] [the name of my {noun}|my {noun}'s name][?|.|]",
            f"[Do you know|Do you remember|Tell me] [what my {noun} is called|who my {noun} is][?|]",
            f"[Can|Could] you [please |]tell me [the name of my {noun}|my {noun}'s name|what my {noun} is called]?",
            f"What [is|was] my {noun}[?| again?]",
        ),
        any_name,
        Phrases(
            f"The name of my {noun} is {{v}}.",
            f"My {noun}'s name is {{v}}.",
            f"My {noun} is {{v}}.",
            f"I have a {noun} [called|named] {{v}}.",
            f"{{v}} is my {noun}.",
        ),
    )


def _hours(place: str, does: str) -> Fact:
    clause = f"the {place} {does}s at {{v}}"
    asks = Phrases(
        f"When does the {place} {does}[?|]",
        f"[At what time|What time] does the {place} {does}?",
        f"[Do you know|Tell me|Do you remember] when the {place} {does}s[?|]",
    )
    return Fact(clause, clause, clause, clause, f"when the {place} {does}s", asks, lambda rng: str(rng.randint(1, 23)))


def common(noun: str, values: Values) -> Fact:
    """A fact about the world and not about somebody."""
    return possessive("the", "the", "the", noun, values)


def one_of(words: tuple[str, ...]) -> Values:
    return lambda rng: pick(rng, words)


def _name() -> Fact:
    plain = mine("name", any_name)
    return Fact(
        key=plain.key,
        mine=plain.mine,
        yours=plain.yours,
        theirs=plain.theirs,
        unknown=plain.unknown,
        values=any_name,
        asks=Phrases(
            "What is my name?",
            "What[ is|'s] my name[?|, please?| again?|]",
            "Who am I[?| again?|]",
            "[Do you know|Do you remember|Can you tell me|Tell me] who I am[?|]",
            "[Do you know|Do you remember|Can you tell me|Tell me|Say|I forgot] my name[?|.|]",
            "What am I called[?|]",
            "What [did I say|did I tell you][ that|] my name [is|was]?",
            "[Do you know|Do you remember|Tell me] what my name is[?|]",
            "[And|So|Now|Hey,] what is my name?",
            "What name did I [tell|give] you?",
            "[Please say|Please tell me|Say|Name] my name[.|!|]",
        ),
        tells=Phrases(
            "[I am|I'm|My name is|My name's|Call me|Please call me|You can call me|They call me|I am called] {v}[.|!|]",
            "[Hi|Hello|Hey|Good morning|Good evening][,|!] [I am|I'm|my name is|this is] {v}[.|!|]",
            "[{v} here|This is {v}|It is {v}][.|!| speaking.]",
            "[Hi|Hello|Hey], {v} here.",
            "[Nice to meet you|Good to see you][,|.|!] [I am|I'm|my name is] {v}.",
        ),
        thanks="Nice to meet you, {v}.",
    )


_PEOPLE = (
    "dog",
    "cat",
    "horse",
    "best friend",
    "friend",
    "brother",
    "sister",
    "teacher",
    "boss",
    "mother",
    "father",
    "son",
    "daughter",
)
FACTS: tuple[Fact, ...] = (
    _name(),
    Fact(
        "your age",
        "I am {v} years old",
        "you are {v} years old",
        "the user is {v} years old",
        "how old you are",
        Phrases(
            "How old am I[?| now?|]",
            "What is my age[?|]",
            "[Do you know|Do you remember|Tell me|Can you tell me|Say] [how old I am|my age][?|.|]",
            "What did I say my age was?",
        ),
        lambda rng: str(rng.randint(5, 99)),
        Phrases("My age is {v}.", "I'm {v}[ years old|].", "I [just |]turned {v}[ today|]."),
    ),
    Fact(
        "where you live",
        "I live in {v}",
        "you live in {v}",
        "the user lives in {v}",
        "where you live",
        Phrases(
            "Where do I live[?| now?|]",
            "[Which|What|In which|In what] city do I live[ in|]?",
            "[Do you know|Do you remember|Tell me|Can you tell me|Say] where I live[?|.|]",
            "What is my [home|city|home town]?",
            "Where is my home?",
        ),
        lambda rng: pick(rng, CITIES) if rng.random() < 0.7 else any_name(rng),
        Phrases("My home is in {v}.", "My city is {v}.", "[I come from|I am from|I moved to] {v}."),
    ),
    Fact(
        "your job",
        "I work as a {v}",
        "you work as a {v}",
        "the user works as a {v}",
        "your job",
        Phrases(
            "What is my [job|work|profession]?",
            "What do I work as?",
            "What do I do [for a living|for work]?",
            "[Do you know|Do you remember|Tell me|Say] [my job|what I work as|what my job is][?|.|]",
        ),
        one_of(JOBS),
        Phrases("My job is {v}.", "I am a {v}.", "I have a job as a {v}."),
    ),
    Fact(
        "the meeting",
        "the meeting is on {v}",
        "the meeting is on {v}",
        "the meeting is on {v}",
        "when the meeting is",
        Phrases(
            "When is the meeting[?|]",
            "[On which|On what|Which|What] day is the meeting?",
            "[Do you know|Do you remember|Tell me|Say] when the meeting is[?|.|]",
        ),
        one_of(DAYS),
        Phrases("We meet on {v}.", "There is a meeting on {v}."),
    ),
    favourite("colour", one_of(COLOURS)),
    favourite("color", one_of(COLOURS), "favorite"),
    mine("favourite number", any_number),
    favourite("food", one_of(FOODS)),
    favourite("animal", one_of(ANIMALS)),
    favourite("city", one_of(CITIES)),
    favourite("sport", one_of(SPORTS)),
    favourite("day", one_of(DAYS)),
    favourite("month", one_of(MONTHS)),
    mine("favourite word", any_word),
    mine("lucky number", any_number),
    mine("room number", any_number),
    mine("house number", any_number),
    mine("number", any_number),
    mine("password", any_word),
    mine("phone number", any_code),
    mine("code", any_code),
    mine("birthday month", one_of(MONTHS)),
    mine("shopping list", lambda rng: listed(rng.sample(SHOPPING, rng.randint(2, 5)))),
    *(called(noun) for noun in _PEOPLE),
    *(_hours(place, does) for place in ("shop", "bank", "library", "museum") for does in ("open", "close")),
    common("password", any_word),
    common("secret word", any_word),
    common("magic word", any_word),
    common("code", any_code),
    common("code word", any_word),
    common("secret number", any_number),
    common("number", any_number),
    common("name of the ship", any_name),
    common("winner", any_name),
    common("captain", any_name),
    common("order number", any_code),
)
_TRAITS: tuple[tuple[str, Values], ...] = (
    ("favourite colour", one_of(COLOURS)),
    ("favourite number", any_number),
    ("favourite food", one_of(FOODS)),
    ("favourite animal", one_of(ANIMALS)),
    ("age", lambda rng: str(rng.randint(5, 99))),
    ("dog", any_name),
    ("job", one_of(JOBS)),
)


def _made_up(rng: Random) -> Fact:
    """A fact about a person or a thing that is met only here."""
    if rng.random() < 0.5:
        person, (trait, values) = any_name(rng), pick(rng, _TRAITS)
        return _of_person(person, trait, values)
    thing = pick(rng, OBJECTS)
    kind = rng.random()
    if kind < 0.4:
        return _where(thing)
    if kind < 0.75:
        return _colour_of(thing)
    if kind < 0.88:
        return _about("the capital of", pick(rng, COUNTRIES), lambda rng: pick(rng, CITIES))
    return _about(pick(rng, ("the owner of the", "the name of the", "the price of the")), thing, _name_or_number)


_ASK_WHAT = Phrases(
    "What is {thing}[?| again?|]",
    "What's {thing}?",
    "[Tell me|Say|Please tell me|Name] {thing}[.|]",
    "[Do you know|Do you remember|Can you tell me] [|what ]{thing}[| is]?",
    "[And|So|Now], what is {thing}?",
    "I forgot {thing}. What is it?",
    "What did I say {thing} was?",
)
_ASK_WHERE = Phrases(
    "Where is the {thing}[?| now?|]",
    "Where did I put the {thing}?",
    "[Do you know|Do you remember|Tell me|Can you tell me] where the {thing} is[?|]",
    "I cannot find the {thing}. Where is it?",
    "In which room is the {thing}?",
)
_ASK_COLOUR = Phrases(
    "What colour is the {thing}[?|]",
    "Which colour [is|has] the {thing}?",
    "What is the colour of the {thing}?",
    "[Do you know|Do you remember|Tell me|Can you tell me] [what colour the {thing} is|the colour of the {thing}][?|]",
)


def _of_person(person: str, trait: str, values: Values) -> Fact:
    return _about(f"{person}'s", trait, values)


def _about(what: str, thing: str, values: Values) -> Fact:
    whose = f"{what} {thing}"
    clause = f"{whose} is {{v}}"
    return Fact(whose, clause, clause, clause, whose, _ASK_WHAT.filled(thing=whose), values)


def _name_or_number(rng: Random) -> str:
    return any_name(rng) if rng.random() < 0.6 else any_number(rng)


_SPOTS = (*PLACES, *OBJECTS, "mat", "bed", "shelf")


def _spot(rng: Random) -> str:
    preposition = pick(rng, ("in", "in", "in", "under", "on", "behind", "near", "next to"))
    place = pick(rng, PLACES if preposition == "in" else _SPOTS)
    return f"{preposition} the {place}"


def _where(thing: str) -> Fact:
    clause = f"the {thing} is {{v}}"
    asks = _ASK_WHERE.filled(thing=thing)
    return Fact(f"place of {thing}", clause, clause, clause, f"where the {thing} is", asks, _spot)


def _colour_of(thing: str) -> Fact:
    clause = f"the {thing} is {{v}}"
    asks = _ASK_COLOUR.filled(thing=thing)
    return Fact(f"colour of {thing}", clause, clause, clause, f"the colour of the {thing}", asks, one_of(COLOURS))


def any_fact(rng: Random) -> Fact:
    """The name every eighth time, and else any."""
    if rng.random() < 0.13:
        return FACTS[0]
    return _made_up(rng) if rng.random() < 0.3 else pick(rng, FACTS)


def known(memory: Memory, fact: Fact) -> str:
    """The answer to a question about it."""
    if fact.key not in memory.told:
        return f"I don't know {fact.unknown}."
    return capitalised(fact.yours.format(v=memory.told[fact.key][1])) + "."


def told(rng: Random, fact: Fact, value: str) -> str:
    """The fact, as a user says it."""
    if fact.tells is not None and rng.random() < 0.6:
        return fact.tells.say(rng, v=value)
    return capitalised(TELL.say(rng, clause=fact.mine.format(v=value)))


def tell(rng: Random, memory: Memory) -> Exchange:
    fact = any_fact(rng)
    value = fact.values(rng)
    memory.told[fact.key] = fact, value
    memory.subject = fact
    answer = fact.thanks or f"Okay, I will remember that {fact.yours}."
    return Exchange(casually(rng, told(rng, fact, value)), answer.format(v=value))


def tell_two(rng: Random, memory: Memory) -> Exchange | None:
    first, second = any_fact(rng), any_fact(rng)
    if first.key == second.key:
        return None
    one, two = first.values(rng), second.values(rng)
    memory.told[first.key], memory.told[second.key] = (first, one), (second, two)
    user = pick(rng, ("{0} and {1}.", "{0}, and {1}.", "{0}. {2}.", "Hi, {3} and {1}.")).format(
        capitalised(first.mine.format(v=one)),
        second.mine.format(v=two),
        capitalised(second.mine.format(v=two)),
        first.mine.format(v=one),
    )
    answer = f"Okay, I will remember that {first.yours.format(v=one)} and {second.yours.format(v=two)}."
    return Exchange(casually(rng, user), answer)


def tell_and_ask(rng: Random, memory: Memory) -> Exchange:
    """Told and asked in one breath; now and then the question is about something else."""
    facts = [any_fact(rng) for _ in range(pick(rng, (1, 1, 1, 2, 2, 3)))]
    sentences = []
    for fact in facts:
        value = fact.values(rng)
        memory.told[fact.key] = fact, value
        sentences.append(told(rng, fact, value) if rng.random() < 0.5 else capitalised(fact.mine.format(v=value)))
    asked = pick(rng, facts) if rng.random() < 0.85 else any_fact(rng)
    stops = (sentence if sentence[-1] in ".!?" else sentence + "." for sentence in sentences)
    return Exchange(casually(rng, f"{' '.join(stops)} {asked.asks.say(rng)}"), known(memory, asked))


def correct(rng: Random, memory: Memory) -> Exchange | None:
    if not memory.told:
        return None
    fact, _ = pick(rng, list(memory.told.values()))
    value = fact.values(rng)
    memory.told[fact.key] = fact, value
    memory.subject = fact
    user = capitalised(_CORRECT.say(rng, clause=fact.mine.format(v=value)))
    return Exchange(casually(rng, user), f"Okay, now {fact.yours.format(v=value)}.")


def correct_it(rng: Random, memory: Memory) -> Exchange | None:
    """What was just spoken of is *it*."""
    fact = memory.subject
    if fact is None or not fact.mine.endswith(" is {v}"):
        return None
    value = fact.values(rng)
    memory.told[fact.key] = fact, value
    return Exchange(casually(rng, _CORRECT_IT.say(rng, v=value)), f"Okay, now {fact.yours.format(v=value)}.")


def forget(rng: Random, memory: Memory) -> Exchange | None:
    if not memory.told:
        return None
    fact, _ = memory.told.pop(pick(rng, list(memory.told)))
    memory.forgotten.append(fact)
    mine = re.sub(r"\byou\b", "I", re.sub(r"\byour\b", "my", fact.unknown))
    return Exchange(casually(rng, _FORGET.say(rng, it=mine)), f"Okay, I have forgotten {fact.unknown}.")


def ask(rng: Random, memory: Memory) -> Exchange | None:
    """About any of the things told: the first of them is as likely as the last."""
    if not memory.told:
        return None
    fact, _ = pick(rng, list(memory.told.values()))
    memory.subject = fact
    return Exchange(casually(rng, chattily(rng, fact.asks.say(rng))), known(memory, fact))


def ask_anything(rng: Random, memory: Memory) -> Exchange:
    """Most often about something that nobody told, or that was to be forgotten."""
    fact = pick(rng, memory.forgotten) if memory.forgotten and rng.random() < 0.4 else any_fact(rng)
    return Exchange(casually(rng, chattily(rng, fact.asks.say(rng))), known(memory, fact))


def check(rng: Random, memory: Memory) -> Exchange | None:
    """A yes or no, and then the fact."""
    if not memory.told:
        return None
    fact, value = pick(rng, list(memory.told.values()))
    guess = value if rng.random() < 0.5 else fact.values(rng)
    user = capitalised(_SAME.say(rng, clause=fact.mine.format(v=guess)))
    said = "Yes" if guess == value else "No"
    return Exchange(casually(rng, user), f"{said}, {fact.yours.format(v=value)}.")


def recap(rng: Random, memory: Memory) -> Exchange | None:
    """All that was told, in the order of telling, while it is not much."""
    if len(memory.told) > 4:
        return None
    clauses = [capitalised(fact.yours.format(v=value)) + "." for fact, value in memory.told.values()]
    return Exchange(casually(rng, _RECAP.say(rng)), " ".join(clauses) or "You have not told me anything.")


ABOUT_ONE_FACT = frozenset({tell, correct, correct_it, ask})
