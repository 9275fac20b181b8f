"""What of a student's text may become part of a page: an allow list, kept by nh3.

nh3 parses as browsers do (html5ever), so that what it writes is read in one way only; it is maintained, while
bleach, which nbconvert uses, is not developed any more and takes a minute for 100 kB of nested tags.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import nh3
from pygments.token import STANDARD_TYPES

LARGEST_IMAGE = 8 * 2**20  # characters of base64
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # no SVG: it can hold scripts
_IMAGE = re.compile(rf"data:({'|'.join(map(re.escape, IMAGES))});base64,[A-Za-z0-9+/=]*")
_LINK = re.compile(r"(https?|mailto):", re.IGNORECASE)
_TAGS = {
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "br", "hr", "div", "span", "blockquote", "details", "summary"),
    *("a", "img", "b", "i", "u", "s", "em", "strong", "del", "mark", "small", "sub", "sup"),
    *("code", "kbd", "pre", "ul", "ol", "li", "dl", "dt", "dd"),
    *("table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title", "width", "height"},
    "ol": {"start"},
    "td": {"colspan", "rowspan", "style", "title"},
    "th": {"colspan", "rowspan", "style"},
}
# Of a report's table and of highlighted code. Without any other, a text cannot pass for the page around it.
_CLASSES = {
    "table": {"labkit-report"},
    "tr": {"passed", "failed", "open", "stop"},
    "td": {"mark", "points"},
    "span": {"why", *filter(None, STANDARD_TYPES.values())},
    "div": {"highlight"},
}


def clean_html(html: str) -> str:
    """`html` with nothing that runs, loads, submits or looks like the page around it.

    Kept: text, tables, lists, links that leave the server, images that are in the text itself.
    """
    return _CLEANER.clean(html)


def images_of(attachments: object) -> dict[str, dict[str, str]]:
    """The pictures among a cell's attachments: file name -> type -> base64. All else is left out."""
    if not isinstance(attachments, Mapping):
        return {}
    found = {str(name): _pictures(kinds) for name, kinds in attachments.items()}
    return {name: kinds for name, kinds in found.items() if kinds}


def _pictures(kinds: object) -> dict[str, str]:
    if not isinstance(kinds, Mapping):
        return {}
    texts = {kind: _joined(kinds[kind]) for kind in IMAGES if kind in kinds}
    return {kind: text for kind, text in texts.items() if is_base64(text)}


def is_base64(text: str) -> bool:
    """Whether this is the base64 of something, and not too much of it."""
    if not text or len(text) > LARGEST_IMAGE:
        return False
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _joined(text: Any) -> str:
    parts = text if isinstance(text, list) else [text]
    return "".join("".join(part.split()) for part in parts if isinstance(part, str))


def _only_safe_values(tag: str, attribute: str, value: str) -> str | None:
    if attribute == "src":
        return value if _IMAGE.fullmatch(value) else None
    if attribute == "href":
        return value if _LINK.match(value) else None
    return value


_CLEANER = nh3.Cleaner(
    tags=_TAGS,
    attributes=_ATTRIBUTES,
    attribute_filter=_only_safe_values,
    allowed_classes=_CLASSES,
    filter_style_properties={"text-align"},  # how Markdown's tables are aligned
    url_schemes={"http", "https", "mailto", "data"},
    link_rel="noopener noreferrer nofollow",
)
