"""Flags out of a shell script: quotes, line continuations, arrays, and variables that the script itself defines.

Nothing is run. What a script only knows when it runs (`$1`, `$(date)`, what stands inside a loop or behind a test of
such values) stays unknown, and says so where it is asked for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from hdpsim.errors import UserInputError
from hdpsim.experiments.other_tools.options import Option, Unread
from hdpsim.experiments.other_tools.shell_tests import Branches, Joined, Truth, both, holds, negated
from hdpsim.quoting import quoted

_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=", re.ASCII)
_BRACED = re.compile(rf"({_NAME})(?:\[[@*]\])?(?::?-(.*))?", re.ASCII | re.DOTALL)
_PLAIN = re.compile(_NAME, re.ASCII)
_SUM = re.compile(r"[\d\s()+*/-]{1,200}", re.ASCII)
_FLAG = re.compile(r"--[A-Za-z][\w.-]*", re.ASCII)
_OPENS, _CLOSES = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
_TESTS = ("[", "[[", "test", "!", "true", "false")
_DECLARES = ("export", "declare", "local", "readonly")
_PRINTS = ("echo", "printf")
_ENDS = ";&|<>\n"
_DEEPEST = 20
_LONGEST = 2**20
"""Characters of what a variable may become: assignments that double one another would fill the memory."""


@dataclass(slots=True)
class _Word:
    """A word as it is written: its pieces, and whether a piece stands in quotes (None: in single ones)."""

    line: int
    pieces: list[tuple[str, bool | None]] = field(default_factory=list)
    array: list[_Word] | None = None

    @property
    def raw(self) -> str:
        return "".join(text for text, _ in self.pieces)


def read_flags(text: str, where: str) -> tuple[Option, ...]:
    """The options of every command of a script, or of a file that holds nothing but flags.

    Environment variables that are exported come as options called `$NAME`.

    Raises:
        UserInputError: a quote or bracket that nobody closes.
    """
    script = _Script(where)
    for words, joined in _statements(text.replace(_MARK, "").replace(_MARK_END, ""), where):
        script.run(words, joined)
    return tuple(script.options())


def _statements(text: str, where: str) -> Iterator[tuple[list[_Word], Joined]]:
    """The words of every statement, and how it depends on the one before it: `[ $FP8 ] && FLAGS=...`."""
    words: list[_Word] = []
    joined: Joined = ""
    for word in chain(_Reader(text, where).words(), ["\n"]):
        if isinstance(word, _Word):
            words.append(word)
            continue
        if words:
            yield words, joined
        if word in ("&&", "||"):
            joined = "&&" if word == "&&" else "||"
        elif words:
            joined = ""
        words = []


class _Reader:
    """A place in a text, and the line it is in."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.place, self.line = 0, 1

    def skip(self, count: int = 1) -> str:
        """Go on, and return what was passed."""
        passed = self.text[self.place : self.place + count]
        self.line += passed.count("\n")
        self.place += count
        return passed

    def comment(self) -> None:
        """Pass over the rest of the line."""
        while self.place < len(self.text) and self.text[self.place] != "\n":
            self.skip()

    def word(self, ends: str = _ENDS) -> _Word:
        """A word up to a blank or to what *ends* it."""
        word = _Word(self.line)
        while self.place < len(self.text):
            character = self.text[self.place]
            if character in ends or character.isspace() or self.text.startswith("\\\n", self.place):
                break
            if ends == _ENDS and character == "(" and _ASSIGNMENT.fullmatch(word.raw):
                self.skip()
                word.array = [one for one in self.words(")") if isinstance(one, _Word)]
                break
            if character in "'\"":
                self._quoted(word)
            elif character == "\\":
                self.skip()
                word.pieces.append((self.skip(), None))
            elif character == "`" or self.text.startswith(("$(", "${"), self.place):
                word.pieces.append((self._nested(), False))
            else:
                word.pieces.append((self.skip(), False))
        return word

    def words(self, closing: str = "") -> Iterator[_Word | str]:
        """Words up to the *closing* mark, or to the end of the text; where a statement ends, what ends it."""
        start = self.line
        while self.place < len(self.text):
            character = self.text[self.place]
            if character == closing:
                self.skip()
                return
            if character in _ENDS:
                yield self.skip(2 if self.text.startswith(("&&", "||"), self.place) else 1)
            elif character.isspace() or self.text.startswith("\\\n", self.place):
                self.skip(1 if character.isspace() else 2)
            elif character == "#":
                self.comment()
            else:
                word = self.word(closing or _ENDS)
                redirects = word.raw.isdecimal() and self.text[self.place : self.place + 1] in (
                    "<",
                    ">",
                )  # 2>&1
                if not redirects:
                    yield word
        if closing:
            raise UserInputError(f"{self.where}:{start}: nobody closes the bracket of this array")

    def _quoted(self, word: _Word) -> None:
        start, mark = self.line, self.skip()
        found = ""
        while self.place < len(self.text):
            character = self.text[self.place]
            if character == mark:
                self.skip()
                word.pieces.append((found, None if mark == "'" else True))
                return
            if mark == '"' and self.text.startswith("\\\n", self.place):
                self.skip(2)
            elif mark == '"' and character == "\\":
                self.skip()
                found += self.skip()
            elif mark == '"' and self.text.startswith(("$(", "${"), self.place):
                found += self._nested()
            else:
                found += self.skip()
        raise UserInputError(f"{self.where}:{start}: nobody closes the quote {mark}")

    def _nested(self) -> str:
        """`${...}`, `$(...)`, `$((...))` or what stands between backquotes, as it is written."""
        end = _end_of(self.text, self.place)
        if not end:
            opening = "the quote `" if self.text[self.place] == "`" else self.text[self.place + 1]
            raise UserInputError(f"{self.where}:{self.line}: nobody closes {opening}")
        return self.skip(end - self.place)


class _Script:
    """What a script knows after the statements so far.

    A value that nobody can know stands in a word as a mark: the place of its reason between two control characters.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._values: dict[str, list[str]] = {}
        self._commands: list[list[tuple[str, int]]] = []
        self._printed: list[list[tuple[str, int]]] = []
        self._of_variables: list[tuple[str, int]] = []
        self._exported: dict[str, tuple[str, int]] = {}
        self._blocks: list[tuple[str, Branches]] = []
        self._chain: Truth = True
        self._chain_presumed = False
        self._reasons: list[str] = []

    def run(self, words: list[_Word], joined: Joined = "") -> None:
        """Read one statement, which may depend on the one before it."""
        reached = self._reached(words, joined)
        if reached is not False:
            self._read_statement(words, inside=reached is None)

    def _reached(self, words: list[_Word], joined: Joined) -> Truth:
        """Whether a statement runs, and what it opens and closes; None: that is known when the script runs."""
        first = words[0].raw
        after: dict[Joined, Truth] = {"": True, "&&": self._chain, "||": negated(self._chain)}
        before = None if joined == "||" and self._chain_presumed else after[joined]
        if first in _OPENS or (first == "{" and before is not True):
            self._blocks.append((first, Branches(before if first == "{" else None)))
        kind, branches = self._blocks[-1] if self._blocks else ("", Branches())
        if kind == "if":
            self._of_if(branches, words, joined)
        reached = both(before, *(one.taken for _, one in self._blocks))
        if first in _CLOSES or (first == "}" and kind == "{"):
            self._blocks = self._blocks[:-1]
        if before is not False:
            tests = first in _TESTS or words[-1].raw.endswith("))")
            sets = all(_ASSIGNMENT.match(word.raw) and "$(" not in word.raw for word in words)
            self._chain_presumed = not tests and not sets  # a command may fail
            self._chain = None if before is None else self._holds(words) if tests else True
        return reached

    def _of_if(self, branches: Branches, words: list[_Word], joined: Joined) -> None:
        """What a statement within `if` is to its branches."""
        first = words[0].raw
        if first in ("if", "elif"):
            branches.test(self._holds(words[1:]), again=first == "elif")
        elif first == "then":
            branches.begins()
        elif first == "else":
            branches.otherwise()
        elif branches.asks:
            branches.joins(self._holds(words), joined)

    def _holds(self, words: list[_Word]) -> Truth:
        """Whether a test holds; None where a value in it is known when the script runs."""
        texts = [part for word in words for part in self._expanded(word)]
        if any(_MARK in text for text in texts):
            return None
        patterns = any(
            quote is False and re.search(r"[*?]", text) for word in words for text, quote in word.pieces
        )
        return None if patterns else holds(texts)

    def _read_statement(self, words: list[_Word], *, inside: bool) -> None:
        """Read what a statement sets or runs; *inside*: it depends on what is known when the script runs."""
        rest = self._without_keywords(words)
        exports = bool(rest) and rest[0].raw in _DECLARES
        while exports and len(rest) > 1 and (rest[0].raw in _DECLARES or rest[0].raw.startswith("-")):
            rest = rest[1:]  # declare -a NAME=(...)
        for place, word in enumerate(rest):
            found = _ASSIGNMENT.match(word.raw)
            if found is None:
                if not exports:
                    self._command(rest[place:], inside)
                return
            self._assign(word, found, exports or len(rest) > place + 1, inside)

    def _without_keywords(self, words: list[_Word]) -> list[_Word]:
        """A statement without what a block begins with: `then`, `{`, `case $X in fp8)`."""
        raws = [word.raw for word in words]
        start = raws.index("in") + 1 if raws[0] == "case" and "in" in raws else 0
        cases = any(kind == "case" for kind, _ in self._blocks)
        while start < len(words):
            pattern = cases and raws[start].endswith(")") and "$(" not in raws[start]
            if not (pattern or raws[start] in ("then", "else", "do", "{", "}")):
                break
            start += 1
        return words[start:]

    def _mark(self, why: str) -> str:
        self._reasons.append(why)
        return f"{_MARK}{len(self._reasons) - 1}{_MARK_END}"

    def _read(self, word: str) -> str | Unread:
        """A word, or why nobody knows it."""
        found = re.search(rf"{_MARK}(\d+){_MARK_END}", word)
        if found is None or word.endswith((".py", ".sh")):  # the program, wherever it lies
            return word
        return Unread(self._reasons[int(found[1])])

    def _assign(self, word: _Word, found: re.Match[str], exported: bool, inside: bool) -> None:
        name = found[1]
        if word.array is not None:
            value = [part for inner in word.array for part in self._expanded(inner)]
        else:
            value = [self._joined(_without(word, found.end()))]
        old = self._values.get(name, [])
        if inside:
            appends = found[2] or re.search(rf"=[\"']?\$\{{?{name}\b", word.raw)
            why = f"it is set inside a condition or a loop (line {word.line})"
            if appends and old:
                given = [part for text in value for part in text.split() if _FLAG.match(part)]
                known = {part for text in old for part in text.split()}
                flags = [f"{part.partition('=')[0]}={self._mark(why)}" for part in given if part not in known]
                self._values[name] = [*old, *flags] if len(old) != 1 else [" ".join([*old, *flags])]
            else:
                self._values[name] = [self._mark(f"${name}: {why}")]
            return
        if found[2]:
            value = [*old, *value] if word.array is not None else ["".join([*old, *value])]
        if sum(map(len, value)) > _LONGEST:
            raise UserInputError(f"{self._where}:{word.line}: ${name} has more than {_LONGEST:,} characters")
        self._values[name] = value
        self._of_variables += [(part, word.line) for text in value for part in text.split()]
        if exported and len(value) == 1:
            self._exported[name] = value[0], word.line

    def _command(self, words: list[_Word], inside: bool) -> None:
        """Keep the words of a command; those of one that only prints them count where no other has flags."""
        kept: list[tuple[str, int]] = []
        (self._printed if words[0].raw in _PRINTS else self._commands).append(kept)
        for word in words:
            for part in self._expanded(word):
                holds_a_command = re.search(r"\s--[A-Za-z]", part) is not None  # sh -c "python ... --flag"
                for word_of_part in part.split() if holds_a_command else [part]:
                    if inside and _FLAG.match(word_of_part):
                        why = f"it stands inside a condition or a loop (line {word.line})"
                        word_of_part = f"{word_of_part.partition('=')[0]}={self._mark(why)}"
                    kept.append((word_of_part, word.line))

    def _expanded(self, word: _Word) -> list[str]:
        """The words that a word becomes: arrays, and variables without quotes, may hold several."""
        listed = re.fullmatch(rf"\$\{{({_NAME})\[[@*]\]\}}", word.raw, re.ASCII)
        if listed is not None and listed[1] in self._values and all(quote for _, quote in word.pieces):
            return list(self._values[listed[1]])
        value = self._joined(word)
        if any(quote is False and "$" in text for text, quote in word.pieces):
            return value.split()
        return [value]

    def _joined(self, word: _Word) -> str:
        found, plain = "", ""
        for text, quote in [*word.pieces, ("", None)]:
            if quote is False:
                plain += text
                continue
            found += self._substituted(plain) + (text if quote is None else self._substituted(text))
            plain = ""
        if len(found) > _LONGEST:
            raise UserInputError(f"{self._where}:{word.line}: a word has more than {_LONGEST:,} characters")
        return found

    def _substituted(self, text: str, depth: int = 0) -> str:
        """*text* with the values of its variables."""
        found, place = "", 0
        while place < len(text):
            character = text[place]
            if character == "`" or text.startswith("$(", place):
                end = _end_of(text, place) or len(text)
                found += self._computed(text[place:end], depth)
            elif character == "$" and place + 1 < len(text):
                braced = text.startswith("${", place)
                end = (_end_of(text, place) or len(text)) if braced else place + 1
                inside = text[place + 2 : end - 1] if braced else ""
                name = _BRACED.fullmatch(inside) if braced else _PLAIN.match(text, place + 1)
                if name is None:
                    end = end if braced else place + 2
                    found += self._mark(f"{text[place:end]} is known when the script runs")
                else:
                    end = end if braced else name.end()
                    found += self._value(name[1] if braced else name[0], name[2] if braced else None, depth)
            else:
                found, end = found + character, place + 1
            place = end
            if len(found) > _LONGEST:
                raise UserInputError(f"{self._where}: a word has more than {_LONGEST:,} characters")
        return found

    def _computed(self, text: str, depth: int) -> str:
        """A sum of whole numbers; what a command prints nobody knows."""
        if text.startswith("$((") and depth < _DEEPEST:
            inner = re.sub(rf"(?<!\$)\b({_NAME})\b", r"$\1", text[3:-2].replace("${", "").replace("}", ""))
            number = _evaluated(self._substituted(inner, depth + 1))
            if number is not None:
                return number
        return self._mark(f"{quoted(text)} is known when the script runs")

    def _value(self, name: str, otherwise: str | None, depth: int) -> str:
        if name in self._values:
            return " ".join(self._values[name])
        if otherwise is not None and depth < _DEEPEST:
            return self._substituted(otherwise.strip("\"'"), depth + 1)
        return self._mark(f"${name} is not defined in the file")

    def options(self) -> Iterator[Option]:
        """Every flag with the words behind it, then what is exported."""
        for commands in (
            self._commands,
            self._printed,
            [self._of_variables],
        ):  # a file of variables for others
            if any(_FLAG.match(word) for words in commands for word, _ in words):
                for words in commands:
                    yield from self._flags(words)
                break
        for variable, (value, line) in self._exported.items():
            yield Option(name=f"${variable}", value=self._read(value), line=line)

    def _flags(self, words: list[tuple[str, int]]) -> Iterator[Option]:
        """The flags of one command."""
        name, line, values = "", 0, list[str | Unread]()
        for word, word_line in [*words, ("--end", 0)]:
            flag = _FLAG.match(word)
            if flag is None:
                values.append(self._read(word))
                continue
            if name:
                yield Option(name=name, value=_value_of(values), line=line)
                for value in values[1:]:
                    if isinstance(value, Unread):
                        yield Option(name=f"(after --{name}: {value.why})", value=value, line=line)
            name, line = flag[0][2:].replace("_", "-"), word_line
            values = [self._read(word[flag.end() + 1 :])] if len(word) > flag.end() else []
            if (
                flag[0] != word and word[flag.end()] != "="
            ):  # a program takes it for one word, and for no flag it knows
                name, values = word[2:], []


_MARK, _MARK_END = "\x01", "\x02"


def _without(word: _Word, count: int) -> _Word:
    """*word* after its first characters, which is the name of the variable that it sets."""
    pieces: list[tuple[str, bool | None]] = []
    for text, quote in word.pieces:
        pieces.append((text[count:], quote))
        count = max(0, count - len(text))
    return _Word(word.line, pieces)


def _end_of(text: str, place: int) -> int:
    """Where what opens at *place* is closed; 0: nowhere."""
    if text[place] == "`":
        return text.find("`", place + 1) + 1
    opening = text[place + 1]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for end in range(place + 1, len(text)):
        depth += (text[end] == opening) - (text[end] == closing)
        if depth == 0:
            return end + 1
    return 0


_OPERATIONS = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__, ast.Div: int.__floordiv__}


def _evaluated(text: str) -> str | None:
    """The whole number that a sum of whole numbers makes."""
    if not _SUM.fullmatch(text) or re.search(r"\d{10}", text):
        return None
    try:
        return str(_number(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ArithmeticError, ValueError):
        return None


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError("no sum of whole numbers")


def _value_of(values: list[str | Unread]) -> str | Unread | bool:
    """What stands behind a flag: up to what is no value any more, such as the name of a script.

    Words that nobody knows may hold more flags: where they follow a value, that counts without them.
    """
    taken: list[str] = []
    for value in values:
        if isinstance(value, Unread):
            if not taken:
                return value
            break
        if value.startswith("-") and not re.match(r"-\d", value):
            break
        taken.append(value)
    return " ".join(taken) if taken else True
