"""What a system prompt may ask for: a name to play, a style of all answers, and facts to know."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from models.tiny.dialogue import Exchange, Memory, Style
from models.tiny.manner import casually
from models.tiny.phrasing import Phrases, capitalised, pick
from models.tiny.skills.facts import any_fact
from models.tiny.words import PLAIN_WORDS, any_name, any_word, words

NAMED = Phrases(
    "[You are|Your name is|You are called|You play|Play] {v}.",
    "You are [a|an old|a friendly|a helpful|a small] [assistant|robot|helper|pirate|wizard|bot] [called|named] {v}.",
    "[Play the role of|Act as|Pretend to be|Speak as|Answer as] {v}.",
    "[The assistant|This assistant] is [called|named] {v}.",
    "[Today|Now|From now on|In this story|For this chat|This time][,|] [you are|your name is|you are called] {v}.",
    "[Call yourself|Introduce yourself as|Say that your name is|Use the name] {v}.",
    "You are {v}[, a pirate|, a helper|, an assistant|, a small robot|, the captain].",
    "The [user|person] [talks|speaks] [to|with] {v}, and you are {v}.",
    "[Your|The] [name|character|persona|role][ here|] [is|shall be|will be] {v}.",
    "[We|I|Users|They|All people] [call|will call|named] you {v}.",
    "[Behave|Talk|Write|Answer questions|Chat][ with the user|] as [if you were |]{v}.",
    "[When asked|If somebody asks|If they ask|When somebody asks for your name], [you are|your name is|say you are] {v}.",
    "[Imagine|Suppose|Assume|Let us say|Remember|Note][ that|] you are [called |named |]{v}.",
    "[Be|Become|You will be|You shall be|You have to be|I want you to be] {v}[ in this chat| today| for the user|].",
    "{v} is [your name|who you are|what you are called|the name you have|the name of the assistant].",
    "[Go by|Answer to|Use|Take|Keep|Have] the name [of |]{v}[ here|].",
)
UPPER = Phrases(
    "[Answer|Always answer|Reply|Always reply|Write|Speak][ only|] in [capitals|capital letters|upper case].",
    "Use [only |][capitals|capital letters|upper case][ in all answers| for every answer|].",
    "[All|Your] answers must be in [capitals|capital letters|upper case].",
    "[Answer|Reply|Write|Speak|Shout] in [all caps|CAPS|caps|ALL CAPS|CAPITALS|CAPITAL LETTERS].",
    "[ANSWER|ALWAYS ANSWER|WRITE|SPEAK|REPLY][ ONLY|] IN [CAPITALS|CAPITAL LETTERS|CAPS|UPPER CASE].",
    "[Shout|Always shout].",
    "[Every|Each|Any] [answer|reply|word|letter|sentence|response] [is|must be|has to be|should be] [in capitals|in capital letters|in upper case|a capital|upper case].",
    "[Do not|Never|You may not|You must not] use [small letters|lower case|lowercase letters].",
    "[I want|I need|I expect|The user wants|Give|Give me|Make] [all |][answers|replies|your answers] in [capitals|capital letters|upper case|big letters].",
    "[Respond|Talk|Say everything|Say all|Type|Type everything|Answer everything|Answer all questions] in [capitals|capital letters|upper case|big letters|uppercase|all capitals].",
    "[Capitals only|Only capitals|Upper case only|Capital letters only|Big letters only][, please|].",
    "[Keep|Hold|Leave|Turn] caps lock on[ all the time|].",
    "[No matter what|Always|At all times|In every case|Each time|From now on][,|] [use|write in|answer in|reply in] [capitals|capital letters|upper case].",
    "[Make|Turn|Put] [everything|all words|every letter|your answers|all that you say] [into |in |][capitals|capital letters|upper case].",
)
_LOWER = Phrases(
    "[Answer|Always answer|Reply|Always reply|Write|Speak][ only|] in [lower case|small letters].",
    "Use [only |][lower case|small letters][ in all answers|].",
    "[Never use capitals|Do not use capital letters].",
)
LAST = Phrases(
    "End [every|each|all|your] [answer|reply|answers|replies] with[ the word|] {v}.",
    "[Always end|Always finish|Finish every answer|Close every answer] with[ the word|] {v}.",
    "[Every|Each] [answer|reply] [ends|must end|should end] with[ the word|] {v}.",
    "[Say|Write|Put|Add][ the word|] {v} at the end[ of every answer| of each answer| of all answers|].",
    "[Always say|Always write|Always put|Always add][ the word|] {v} at the end[ of every answer| of your answers|].",
    "The last word of [every|each] answer [is|must be] {v}.",
    "[Conclude|Complete|Close|Finish|Stop] [every|each|all|your] [answer|reply|message|answers|replies|messages|response] [with|by saying|using] [the word |]{v}.",
    "[After|Behind|Following] [every|each] [answer|reply|sentence|message][,|] [say|write|put|add|comes] [the word |]{v}.",
    "[No matter what|Always|At all times|In every case|Each time|From now on][,|] [end|finish|close] with [the word |]{v}.",
    "[Let|Make] {v} [be |][the last word|the final word|your last word][ of every answer| of each reply| always|].",
    "{v} [is|must be|has to be|shall be] [the last word|the final word|your last word|the end] of [every|each] [answer|reply|message].",
    "[Your|All|All your] [answers|replies|messages] [end|must end|should end|have to end|always end] [with|in|on] [the word |]{v}.",
    "[Append|Attach] [the word |]{v} to [every|each|all|your] [answer|reply|answers|replies].",
    "[I want|I need|I expect|The user wants] [every|each] [answer|reply] to end [with|in] [the word |]{v}.",
    "[When you|Once you|If you] [are done|have answered|answer|finish][,|] [say|write|add] [the word |]{v}.",
)
_FIRST = Phrases(
    "[Begin|Start] [every|each|all|your] [answer|reply|answers|replies] with[ the word|] {v}.",
    "[Always begin|Always start] with[ the word|] {v}.",
    "[Every|Each] [answer|reply] [begins|must begin|starts|should start] with[ the word|] {v}.",
)
_PLAIN = Phrases(
    "You are a [helpful|friendly|kind|useful|polite] assistant.",
    "[Be|Please be] [kind|friendly|helpful|short|brief|polite].",
    "[Help the user|Answer the questions of the user|Talk with the user].",
)
_TOOLS = Phrases("Tools: [weather, time, price|weather, time|weather|time, weather|price, weather, time].")
_INTERJECTIONS = words("please thanks sir madam sorry cheers arr ahoy amen over out done okay wow hooray meow woof ha")
_ASK_OWN_NAME = Phrases(
    "What is your name[?| please?|]",
    "[What's your name|What are you called|Who are you|And who are you|Who am I talking to|And you][?|]",
    "[Tell me|Say|Can you tell me|May I know|Do you know] [your name|who you are|what you are called][?|.|]",
    "Do you have a name?",
    "[Hi|Hello|Hey][,|!] [who are you|what is your name]?",
)


def system_prompt(rng: Random, memory: Memory) -> tuple[str, Style]:
    """A system prompt of one to four sentences, and what it does to all answers."""
    sentences, style = [], Style()
    if rng.random() < 0.35:
        sentences.append(_PLAIN.say(rng))
    if rng.random() < 0.45:
        memory.own_name = any_name(rng)
        sentences.append(NAMED.say(rng, v=memory.own_name))
    if rng.random() < 0.55:
        sentence, style = _any_style(rng, style)
        sentences.append(sentence)
        if rng.random() < 0.15:
            sentence, style = _any_style(rng, style)
            sentences.append(sentence)
    if rng.random() < 0.4:
        for _ in range(pick(rng, (1, 1, 2, 3))):
            fact = any_fact(rng)
            value = fact.values(rng)
            memory.told[fact.key] = fact, value
            sentences.append(capitalised(fact.theirs.format(v=value)) + ".")
    if not sentences:
        sentences.append(_PLAIN.say(rng))
    elif rng.random() < 0.3:
        rng.shuffle(sentences)
    if rng.random() < 0.1:
        memory.has_tools = True
        sentences.append(_TOOLS.say(rng))
    return " ".join(sentences), style


def _any_style(rng: Random, style: Style) -> tuple[str, Style]:
    """One more wish. The case is wished for once; a second wish for it is one for a last word instead."""
    kind = rng.random()
    if kind < 0.35 and style.case == "as written":
        return UPPER.say(rng), replace(style, case="upper")
    if kind < 0.45 and style.case == "as written":
        return _LOWER.say(rng), replace(style, case="lower")
    word = _marking_word(rng)
    written = f'"{word}"' if rng.random() < 0.25 else f"'{word}'" if rng.random() < 0.1 else word
    if kind < 0.6:
        return _FIRST.say(rng, v=written), replace(style, first_word=word)
    return LAST.say(rng, v=written), replace(style, last_word=word)


def _marking_word(rng: Random) -> str:
    kind = rng.random()
    word = pick(rng, PLAIN_WORDS) if kind < 0.5 else pick(rng, _INTERJECTIONS) if kind < 0.7 else any_word(rng)
    return word.capitalize() if rng.random() < 0.25 else word.upper() if rng.random() < 0.05 else word


def ask_own_name(rng: Random, memory: Memory) -> Exchange:
    return Exchange(casually(rng, _ASK_OWN_NAME.say(rng)), f"My name is {memory.own_name}.")
