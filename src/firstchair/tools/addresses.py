"""Which addresses a model's requests must never reach. Pure functions of addresses, never of their spelling.

A name is resolved first, so ``2130706433``, ``0x7f.1`` or a DNS entry for 127.0.0.1 all come here as what they are.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "169.254.169.254", "fd00:ec2::254")))
"""Where clouds answer their own machines. The first, Azure's, counts as public otherwise."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


def forbidden(address: Address) -> str | None:
    """Why ``address`` must not be reached: one word or two; ``None`` for a public one.

    An IPv6 address that stands for an IPv4 one (mapped, NAT64) is judged as that; one that carries it (compatible,
    6to4, Teredo) by both.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return forbidden(_last_bits(address))
        for inner in _carried(address):
            reason = forbidden(inner)
            if reason is not None:
                return reason
    if address in METADATA:
        return "a cloud's metadata service"
    if address.is_unspecified:
        return "the unspecified address"
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    if not address.is_global or site_local or address.is_reserved:
        return "private or reserved"
    return None


def _carried(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    found = [address.sixtofour, *(address.teredo or ())]
    # ::1 and :: are themselves, not 0.0.0.1 and 0.0.0.0.
    if address in _COMPATIBLE and int(address) > 1:
        found.append(_last_bits(address))
    return [one for one in found if one is not None]


def _last_bits(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
