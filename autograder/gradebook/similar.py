"""Which students' code is more alike than work done apart is: for a person to look at, and for no points.

Passages are found by winnowing (Schleimer, Wilkerson and Aiken, SIGMOD 2003), the method of MOSS: hashes of
every run of K tokens, of which the least in each window of W is kept, so that a common run of K + W - 1
tokens is always found. Names that a student chose, numbers, texts, comments and layout do not count. Left out
is what everybody was handed or could be led to: the runs of the released notebook and of the reference, and
what many in the class have.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import itertools
import keyword
import tokenize
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

K = 16  # tokens of a run: about two lines
W = 8  # windows of so many runs keep one
ENOUGH = 0.25  # the share of the smaller one's passages from which a pair is listed
FEWEST = 8  # common passages, below which there is too little to say
JOINT = "\n\n"  # between two cells, where they are shown
MOST_TOKENS = 100_000  # of a student's that are looked at; whole lessons have a tenth of it
_LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
# From Python 3.12 on, and 3.14.
_TEXT_BEGINS = {getattr(tokenize, name, None) for name in ("FSTRING_START", "TSTRING_START")} - {None}
_TEXT_ENDS = {getattr(tokenize, name, None) for name in ("FSTRING_END", "TSTRING_END")} - {None}
_KNOWN = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}


@dataclass(frozen=True)
class Passage:
    """A run of K tokens, by their hash. lines: first and last, from 1."""

    hash: int
    lines: tuple[int, int]


@dataclass(frozen=True)
class Pair:
    """Two students with much in common. share: common passages of the one with fewer, 0 to 1. lines: those
    of either source that are in a common passage.
    """

    students: tuple[str, str]
    share: float
    common: int
    lines: tuple[frozenset[int], frozenset[int]]


def alike(sources: Mapping[str, Sequence[str]], given: Iterable[str]) -> list[Pair]:
    """The pairs of students that a person should look at, the most alike first.

    sources: student -> the cells of their code. given: cells that everybody was handed, and the reference.
    """
    handed_out = {run.hash for run in _runs(given)}
    found = {student: winnow(source, handed_out) for student, source in sources.items()}
    often = _common_to_many(found.values())
    kept = {student: [p for p in passages if p.hash not in often] for student, passages in found.items()}
    hashes = {student: {p.hash for p in passages} for student, passages in kept.items()}
    listed = []
    for one, other in itertools.combinations(kept, 2):
        common = hashes[one] & hashes[other]
        share = len(common) / (min(len(hashes[one]), len(hashes[other])) or 1)
        if share >= ENOUGH and len(common) >= FEWEST:
            lines = (_lines(kept[one], common), _lines(kept[other], common))
            listed.append(Pair((one, other), share, len(common), lines))
    return sorted(listed, key=lambda pair: (-pair.share, -pair.common, pair.students))


def winnow(cells: Iterable[str], handed_out: Collection[int] = ()) -> list[Passage]:
    """What winnowing keeps of some cells, but for the runs that were handed out: of each window the least,
    and of equals the last.
    """
    runs = [run for run in _runs(cells) if run.hash not in handed_out]
    windows = (range(start, min(start + W, len(runs))) for start in range(max(1, len(runs) - W + 1)))
    kept = {min(window, key=lambda n: (runs[n].hash, -n)) for window in windows if window}
    return [runs[number] for number in sorted(kept)]


def is_cut(cells: Sequence[str]) -> bool:
    """Whether there is more of a student's than is looked at."""
    if sum(map(len, cells)) <= MOST_TOKENS:
        return False  # a token has a character at least
    tokens = itertools.chain.from_iterable(map(_tokens, cells))
    return any(True for _ in itertools.islice(tokens, MOST_TOKENS, None))


def _lines(passages: Iterable[Passage], common: set[int]) -> frozenset[int]:
    found = (range(p.lines[0], p.lines[1] + 1) for p in passages if p.hash in common)
    return frozenset(itertools.chain.from_iterable(found))


def _common_to_many(found: Iterable[Sequence[Passage]]) -> set[int]:
    """What more than a quarter of the class have, and more than three: an idiom, or a hint in the lecture."""
    each = [{passage.hash for passage in passages} for passages in found]
    count = Counter(itertools.chain.from_iterable(each))
    return {one for one, students in count.items() if students > max(3, len(each) / 4)}


def _runs(cells: Iterable[str]) -> Iterator[Passage]:
    """Every run of K tokens within a cell. Lines are those of the cells joined by JOINT."""
    line, left = 0, MOST_TOKENS
    for cell in cells:
        tokens = list(itertools.islice(_tokens(cell), left))
        left -= len(tokens)
        for start in range(len(tokens) - K + 1):
            part = tokens[start : start + K]
            words = "\0".join(text for text, _ in part).encode("utf-8", "replace")
            digest = hashlib.blake2b(words, digest_size=8).digest()
            yield Passage(int.from_bytes(digest), (line + part[0][1], line + part[-1][1]))
        line += cell.count("\n") + JOINT.count("\n")


def _tokens(source: str) -> Iterator[tuple[str, int]]:
    """What counts of a source, with the line it is in; up to where it cannot be read any more."""
    before = ("", "")  # the two words before
    begins = True  # a statement: a text alone there is a docstring
    try:
        for token in _whole_texts(tokenize.generate_tokens(io.StringIO(source).readline)):
            if token.type in _LAYOUT:
                begins = begins or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
                continue
            if not (begins and token.type == tokenize.STRING):
                yield _word(token, before), token.start[0]
            begins = False
            before = (before[1], token.string)
    except (tokenize.TokenError, SyntaxError):
        return


def _whole_texts(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """The tokens with every f-string as one text, as Python 3.11 has it; later ones tell its parts."""
    depth = 0
    for token in tokens:
        opens = token.type in _TEXT_BEGINS
        if not depth:
            yield token._replace(type=tokenize.STRING) if opens else token
        depth += opens - (token.type in _TEXT_ENDS)


def _word(token: tokenize.TokenInfo, before: tuple[str, str]) -> str:
    match token.type:
        case tokenize.NAME:
            of_another = before[1] == "." and before[0] != "self"
            return token.string if of_another or token.string in _KNOWN else "name"
        case tokenize.NUMBER:
            return "number"
        case tokenize.STRING:
            return "text"
    return token.string
