"""How clients share an engine: whose turn it is to start, and who gives up a place in a full queue.

In: what waits and what was computed, by share (a key, an address: the caller says which). Out: what each share was
served, so that turns can be taken (`Turns`), and the requests that leave a full queue for a newcomer (`displaced`).
Knows nothing of requests beyond their size.

Turns go to the share that was served least: tokens computed for it, divided by its weight. A share that comes back
after a pause has no claim to what it did not ask for: it begins at the level of those that wait. That level rises with
everything that starts, so a share that waits has its turn however many new ones come. A share alone has every turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

_REMEMBERED = 1024  # accounts, before those of clients that have left are dropped


@dataclass(frozen=True, slots=True)
class ClientShare:
    """Whose a request is, and how much of the engine it may claim beside others."""

    name: str = ""
    weight: float = 1.0


EVERYBODY = ClientShare()


@dataclass(slots=True, eq=False)
class Account:
    """What one share was given."""

    share: ClientShare
    served: float = 0.0  # tokens by weight
    since: int = 0  # when it began to wait, in the order in which shares did
    inside: int = 0  # requests that wait or run

    def charge(self, tokens: int) -> None:
        self.served += tokens / self.share.weight


@dataclass(slots=True)
class Turns:
    """The accounts of all shares."""

    accounts: dict[str, Account] = field(default_factory=dict)
    level: float = 0.0  # where a share begins that had nothing waiting
    began: int = 0  # times that a share began to wait

    def enter(self, share: ClientShare) -> Account:
        """A request comes in. Its account; the weight is the one that was given last."""
        account = self.accounts.get(share.name)
        if account is None:
            if len(self.accounts) >= _REMEMBERED:
                self._forget()
            account = self.accounts[share.name] = Account(share)
        account.share = share
        account.inside += 1
        return account

    def leave(self, account: Account) -> None:
        """A request has ended."""
        account.inside -= 1

    def begins_to_wait(self, account: Account) -> None:
        """A share has something waiting that had nothing before."""
        account.served = max(account.served, self.level)
        self.began += 1
        account.since = self.began

    def start(self, account: Account, tokens: int, waiting: Iterable[Account]) -> None:
        """A request with so many tokens to compute starts; `waiting` are the others' accounts with requests waiting."""
        rivals = [account, *(one for one in waiting if one is not account)]
        least = min(one.served for one in rivals)
        # What the start means to each of them, if all were served at once and by weight.
        self.level = max(self.level, least + tokens / sum(one.share.weight for one in rivals))
        account.charge(tokens)

    def _forget(self) -> None:
        """Clients that have left, and would begin at the level; all that have left, where these are few."""
        gone = [name for name, one in self.accounts.items() if not one.inside]
        behind = [name for name in gone if self.accounts[name].served <= self.level]
        for name in behind if 2 * len(behind) > len(gone) else gone:
            del self.accounts[name]


class Holder(Protocol):
    """A request with places in a queue."""

    @property
    def share(self) -> ClientShare: ...

    @property
    def places(self) -> int: ...

    @property
    def waiting(self) -> bool:
        """Nothing of its answer has been given."""
        ...


Held = TypeVar("Held", bound=Holder)


def fair_places(share: ClientShare, weights: Mapping[str, float], places: int) -> float:
    """Of so many, what a share may have while those of these weights want some: by weight, and one at least."""
    return max(1.0, places * share.weight / sum({**weights, share.name: share.weight}.values()))


def displaced(share: ClientShare, wanted: int, holders: Sequence[Held], places: int) -> list[Held]:
    """Waiting requests that leave a full queue for a newcomer, which then stays within its fair part.

    The newest of the share that is furthest above its own, one after the other. None where that does not make room.
    """
    shares = {one.share.name: one.share for one in holders} | {share.name: share}
    weights = {name: one.weight for name, one in shares.items()}
    held = dict.fromkeys(shares, 0)
    waiting: dict[str, list[Held]] = {name: [] for name in shares}
    for one in holders:
        held[one.share.name] += one.places
        if one.waiting:
            waiting[one.share.name].append(one)
    if held[share.name] + wanted > fair_places(share, weights, places):
        return []
    missing = sum(held.values()) + wanted - places
    chosen: list[Held] = []
    while missing > 0:
        above = [name for name in shares if waiting[name] and held[name] > fair_places(shares[name], weights, places)]
        if not above:
            return []
        most = max(above, key=lambda name: held[name] / weights[name])
        one = waiting[most].pop()
        held[most] -= one.places
        missing -= one.places
        chosen.append(one)
    return chosen
