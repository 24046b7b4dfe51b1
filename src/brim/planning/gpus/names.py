"""A card of the catalogue by name, as people and drivers write it.

In: "4090", "3090ti", "h100-pcie", "NVIDIA A100-SXM4-80GB". Out: a `Card`, or None. Case, separators, makers and form
factors do not matter; a word nobody knows does: a laptop's RTX 4090 has other memory than the card.
"""

from __future__ import annotations

import re
from functools import cache

from brim.planning.gpus.cards import CARDS, CatalogueCard
from brim.suggest import suggestions

_MAKERS = re.compile(r"^(?:nvidia|geforce|tesla|amd|instinct|radeon|intel|apple|google|huawei|habana)+")
_FORM_FACTOR = re.compile(r"sxm\d?|pcie|oam|dgxs|hbm\d?e?")
_GLUED_FORM_FACTOR = re.compile(r"(?<=[a-z0-9])(sxm\d?$|pcie$|hbm\d?e?$)")
_SIZE = re.compile(r"(\d{1,4})gb?")
_SAYS_NOTHING = {"gpu", "generation", "edition", "graphics"}
_SAME = {"mobile": "laptop"}


def find_card(text: str) -> CatalogueCard | None:
    """The card of that name; of cards that share it, the one with the size in the text, else the usual one."""
    words = _words(text)
    plain = [word for word in words if not _FORM_FACTOR.fullmatch(word)]
    return _whole_names().get(_joined(words)) or _whole_names().get(_joined(plain)) or _by_family(plain)


def near_names(text: str) -> list[str]:
    """Names of the catalogue that somebody may have meant."""
    wanted = "-".join(_words(text))
    if wanted[:1].isdigit():
        wanted = f"rx-{wanted}" if "xt" in wanted else f"rtx-{wanted}"
    return suggestions(wanted, [*(card.key for card in CARDS), *_short_names()])


def _by_family(words: list[str]) -> CatalogueCard | None:
    sizes = [int(found[1]) for word in words if (found := _SIZE.fullmatch(word))]
    family = _families().get(_joined([word for word in words if not _SIZE.fullmatch(word)]), ())
    return next((card for card in family if all(card.sold_gb == size for size in sizes)), None)


def _words(text: str) -> list[str]:
    """The words of a name that say something, in lower case, form factors apart from what they are glued to."""
    found: list[str] = []
    for word in re.findall(r"[a-z0-9]+", text.lower()):
        bare = _MAKERS.sub("", word)
        if bare and bare not in _SAYS_NOTHING:
            found += _GLUED_FORM_FACTOR.sub(r" \1", _SAME.get(bare, bare)).split()
    return found


def _joined(words: list[str]) -> str:
    """A name as one word; workstation and consumer cards with or without their RTX or RX."""
    return "".join(words).removeprefix("rtx").removeprefix("rx")


def _spellings(card: CatalogueCard) -> tuple[str, ...]:
    return (card.key, card.name, *card.also)


@cache
def _whole_names() -> dict[str, CatalogueCard]:
    return {_joined(_words(spelling)): card for card in reversed(CARDS) for spelling in _spellings(card)}


@cache
def _families() -> dict[str, tuple[CatalogueCard, ...]]:
    """Cards by name without size and form factor."""
    found: dict[str, tuple[CatalogueCard, ...]] = {}
    for card in CARDS:
        for spelling in (card.key, card.name):
            words = [word for word in _words(spelling) if not (_SIZE.fullmatch(word) or _FORM_FACTOR.fullmatch(word))]
            others = found.get(_joined(words), ())
            found[_joined(words)] = others if card in others else (*others, card)
    return found


def _short_names() -> list[str]:
    """Keys without their size, where there is one: "a100", "rtx-4060-ti"."""
    return [re.sub(r"-\d+gb$", "", card.key) for card in CARDS if card.key.endswith("gb")]
