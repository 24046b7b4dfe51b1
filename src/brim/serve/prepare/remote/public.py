"""Which addresses anybody may reach: a server must not fetch for a stranger what only it can reach."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")


def is_public(text: str) -> bool:
    """Whether this is an address of the open internet; one that stands for an IPv4 address is judged by that."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        if address in _LOCAL_NAT64:
            return False
        inside = _inside(address)
        if inside is not None:
            return is_public(str(inside))
    return address.is_global and not (address.is_multicast or address.is_reserved or _is_site_local(address))


def _inside(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to this one end up at."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _is_site_local(address: IPv4Address | IPv6Address) -> bool:
    return isinstance(address, IPv6Address) and address.is_site_local
