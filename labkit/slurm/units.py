"""Times and memory as Slurm writes them."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

_FORM = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
_UNLIMITED = "(?i:infinite|unlimited)"  # sinfo's word, and scontrol's
_SUCH_AS = "a time such as 01:30:00 (hours:minutes:seconds)"
Time = Annotated[str, Meta(pattern=rf"\A\s*{_FORM.pattern}\s*\Z", description=_SUCH_AS)]
Limit = Annotated[
    str,
    Meta(
        pattern=rf"\A(\s*({_FORM.pattern}|{_UNLIMITED})\s*)?\Z",
        description=f'{_SUCH_AS}, or "infinite", or "" for no limit',
    ),
]


def minutes_of(text: str) -> int:
    """'30' and '30:00' -> 30, '01:30:00' -> 90, '1-0' and '1-00:00:00' -> 1440. ValueError for other text."""
    found = _FORM.fullmatch(text.strip())
    if not found:
        raise ValueError(f"expected {_SUCH_AS} and found {text!r}")
    parts = [int(part) for part in found["rest"].split(":")]
    if found["days"] is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(found["days"]) * 1440 + hours * 60 + minutes + (seconds > 0)
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + (parts[2] > 0)
    return parts[0] + (len(parts) == 2 and parts[1] > 0)


def limit_of(text: str) -> int:
    """A limit in minutes; 0 for none, which Slurm writes as infinite or UNLIMITED."""
    return 0 if re.fullmatch(rf"\s*{_UNLIMITED}?\s*", text) else minutes_of(text)


def check_minutes(minutes: int) -> None:
    """ValueError for a job of no minutes: Slurm reads that as one that has no limit."""
    if minutes < 1:
        raise ValueError("a time of 0 means no limit to Slurm; ask for at least one minute, 00:01:00")


def slurm_time(minutes: int) -> str:
    """90 -> '01:30:00', 1500 -> '1-01:00:00'."""
    days, rest = divmod(minutes, 1440)
    hours, minutes = divmod(rest, 60)
    return (f"{days}-" if days else "") + f"{hours:02d}:{minutes:02d}:00"


def mib_of(text: str) -> int:
    """'512' and '512M' -> 512, '16G' -> 16384, '1T' -> 1048576. ValueError for other text."""
    found = re.fullmatch(r"(\d+)([MGT]?)", text)
    if not found:
        raise ValueError(f"expected memory such as 16G and found {text!r}")
    return int(found[1]) * {"": 1, "M": 1, "G": 1024, "T": 1024**2}[found[2]]


def slurm_memory(mib: int) -> str:
    """16384 -> '16G', 512 -> '512M'."""
    return f"{mib}M" if mib % 1024 else f"{mib // 1024}G"
