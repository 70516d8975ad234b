"""Where a C++ source can be faulty: the places of a file, by kind, and what stands there with the fault (tests/mutate.py).

Works on tokens, not on a parsed program: operators with spaces on both sides are binary, as everywhere in this project. What
does not compile with the fault is dropped by the caller. Left alone are comments, texts, the preprocessor's lines, what the
compiler computes (templates, constexpr), error messages, and what changes speed alone: grains, prefetches, reserved memory.
"""
import bisect
import collections
import re

KINDS = {
    "compare": "< for <=, == for != and so on",
    "condition": "an if that does the contrary",
    "logic": "&& for ||",
    "term": "a term or factor left out",
    "sign": "+ for -, or a minus left out",
    "swap": "operands of - and /, or both values of ?:, exchanged",
    "index": "a subscript one too high or too low",
    "tail": "a loop that leaves out its last round",
    "constant": "a number one too high; with a fraction, twice as high",
    "drop": "a statement left out",
    "stale": "memory that is not filled, copied or cleared",
}
# `planted(m)` is the text with both, m being the switch; `fault` what it computes where m is true.
Site = collections.namedtuple("Site", "kind start end line fault planted")

TOKEN = re.compile(r"""
    (?P<skip>//[^\n]*|/\*.*?\*/|\s+|^[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<text>R"(?P<end>\w*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<op><=>|->\*|<<=|>>=|\.\.\.|::|->|\+\+|--|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|<<|>>|.)
""", re.X | re.S | re.M)
LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< <= > >= <=>", "<< >>", "+ -", "* / %")
LEVEL = {op: n for n, ops in enumerate(LEVELS, 1) for op in ops.split()}
STOPS = set("; , ? : = += -= *= /= %= &= |= ^= <<= >>= return co_return throw case else do".split())
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# A statement with one of these is the compiler's, a text for people, or about speed alone.
ALONE = set("""static_assert constexpr consteval template using enum concept requires alignas operator case typedef namespace
    struct class public private virtual extern fail throw decltype noexcept __builtin_prefetch reserve asm""".split())
FILLS = re.compile(r"\b(\w*(copy|fill|pack|mem(cpy|set|move)|zero|clear|reset|assign|resize|store|save|flush)\w*)\s*[<(]")


class Source:
    def __init__(self, text):
        self.text, self.tokens = text, []
        for match in TOKEN.finditer(text):
            if match.lastgroup != "skip" and not match.group("skip"):
                kind = next(k for k in ("text", "number", "name", "op") if match.group(k))
                self.tokens.append((kind, match.group(), match.start(), match.end()))
        self.newlines = [i for i, c in enumerate(text) if c == "\n"]
        self.partner, stack = {}, []
        for i, (kind, token, *_) in enumerate(self.tokens):
            if kind == "op" and token in "([{":
                stack.append(i)
            elif kind == "op" and token in ")]}" and stack:
                self.partner[i] = stack.pop()
                self.partner[self.partner[i]] = i

    def word(self, i):
        return self.tokens[i][1] if 0 <= i < len(self.tokens) else ";"

    def spaced(self, i):
        _, _, start, end = self.tokens[i]
        return self.text[start - 1].isspace() and self.text[end].isspace()

    def between(self, first, last):
        """The text of tokens first … last."""
        return self.text[self.tokens[first][2]:self.tokens[last][3]]

    def level(self, i):
        return LEVEL.get(self.word(i), 0) if self.tokens[i][0] == "op" and self.spaced(i) else 0

    def left(self, i, level):
        """The first token of the left operand of an operator of this level at i."""
        j = i - 1
        while j >= 0:
            if self.word(j) in (")", "]") and j in self.partner:
                j = self.partner[j] - 1
                continue
            if self.word(j) in ("(", "[", "{", "}") or self.word(j) in STOPS or 0 < self.level(j) < level:
                break
            j -= 1
        return j + 1

    def right(self, i, level):
        """The last token of the right operand."""
        j = i + 1
        while j < len(self.tokens):
            if self.word(j) in ("(", "[", "{") and j in self.partner:
                j = self.partner[j] + 1
                continue
            if self.word(j) in (")", "]", "}") or self.word(j) in STOPS or 0 < self.level(j) <= level:
                break
            j += 1
        return j - 1

    def begin(self, i):
        """The first token of the statement of token i."""
        j = i - 1
        while j >= 0 and self.word(j) not in (";", "{", "}"):
            j -= 1
        return j + 1

    def alone(self, i):
        words = {self.word(j) for j in range(self.begin(i), i + 1)}
        return bool(words & ALONE) or any(w.startswith(("kGrain", "grain")) for w in words) or self.is_grain(i)

    def is_grain(self, i):
        """Whether token i stands in the second argument of a parallel_for."""
        j, commas = i - 1, 0
        while j >= 0 and self.word(j) not in (";", "{", "}"):
            if self.word(j) in (")", "]") and j in self.partner:
                j = self.partner[j]
            elif self.word(j) == "," :
                commas += 1
            elif self.word(j) == "(":
                if self.word(j - 1) == "parallel_for":
                    return commas == 1
                commas = 0
            j -= 1
        return False

    def site(self, kind, first, last, fault, planted):
        start, end = self.tokens[first][2], self.tokens[last][3]
        return Site(kind, start, end, bisect.bisect_left(self.newlines, start) + 1, fault, planted)

    def binary(self, i):
        op, level = self.word(i), self.level(i)
        first, last = self.left(i, level), self.right(i, level)
        if first >= i or last <= i or any(self.tokens[j][0] == "text" for j in range(first, last + 1)):
            return
        a, b, whole = self.between(first, i - 1), self.between(i + 1, last), self.between(first, last)
        either = lambda kind, fault: self.site(kind, first, last, fault, lambda m: f"({m} ? ({fault}) : ({whole}))")
        if op in OTHER:
            yield either("compare", f"{a} {OTHER[op]} {b}")
            if op == "<" and self.in_for_header(i):
                yield self.site("tail", i + 1, last, f"{b} - 1", lambda m: f"({b}) - {m}")
        elif op in ("&&", "||"):
            yield either("logic", f"({a}) {'||' if op == '&&' else '&&'} ({b})")
        elif op in "+-*/":
            yield either("term", a)
            if op in "+*":
                yield either("term", b)
            if op in "+-":
                yield either("sign", f"{a} {'-' if op == '+' else '+'} ({b})")
            if op in "-/":
                yield either("swap", f"({b}) {op} ({a})")

    def opener(self, i):
        """The bracket that token i stands in, or -1."""
        j = i - 1
        while j >= 0 and self.word(j) not in ("(", "[", "{"):
            j = self.partner[j] - 1 if j in self.partner else j - 1
        return j

    def in_for_header(self, i):
        j = self.opener(i)
        return self.word(j) == "(" and self.word(j - 1) == "for" and self.word(self.begin(i) - 1) == ";" and self.begin(i) > j

    def sites(self):
        for i, (kind, word, *_) in enumerate(self.tokens):
            if kind == "text" or word in ")]}" or self.alone(i):
                continue
            before, after = self.word(i - 1), self.word(i + 1)
            if kind == "number":
                if before not in ("<", "::", "=") or self.spaced_before(i):
                    fraction = re.match(r"(?!0x)(?=.*[1-9]).*([.]|e-)", word)
                    fault = f"2 * {word}" if fraction else f"{word} + 1"
                    yield self.site("constant", i, i, fault, lambda m, w=word, f=fault: f"({m} ? {f} : {w})")
            elif word == "-" and not self.spaced(i) and self.word(i + 1) not in ("-", ">"):
                last = self.right(i, 99)
                if last > i and not re.search(r"[\w)\]]$", self.text[:self.tokens[i][2]].rstrip()) or before == "return":
                    body = self.between(i + 1, last)
                    yield self.site("sign", i, last, body, lambda m, b=body: f"({m} ? ({b}) : -({b}))")
            elif self.level(i):
                yield from self.binary(i)
            elif word == "?":
                yield from self.choice(i)
            elif word == "if" and after == "(" and i + 1 in self.partner:
                close = self.partner[i + 1]
                body = self.between(i + 1, close)
                yield self.site("condition", i + 1, close, f"(!{body})", lambda m, b=body: f"(static_cast<bool>{b} != {m})")
            elif word == "[" and re.search(r"[\w)\]]$", self.text[:self.tokens[i][2]]) and after != "]" and i in self.partner:
                body = self.between(i + 1, self.partner[i] - 1)
                for sign in "+-":
                    yield self.site("index", i + 1, self.partner[i] - 1, f"{body} {sign} 1", lambda m, b=body, s=sign: f"({b}) {s} {m}")
            elif kind == "name" and before in (";", "{", "}", ")", "else") and word not in STOPS and self.word(self.opener(i)) != "(":
                yield from self.statement(i)

    def spaced_before(self, i):
        return self.text[self.tokens[i][2] - 1].isspace()

    def choice(self, i):
        """c ? a : b, where neither a nor b has another one."""
        colon = self.right(i, 0.5) + 1
        if self.word(colon) == ":" and self.spaced(i) and self.spaced(colon):
            last = self.right(colon, 0.5)
            if last > colon and self.word(last + 1) != "?" and not any(self.tokens[j][0] == "text" for j in range(i, last + 1)):
                a, b = self.between(i + 1, colon - 1), self.between(colon + 1, last)
                if a != b:
                    yield self.site("swap", i + 1, last, f"{b} : {a}", lambda m: f"({m} ? ({b}) : ({a})) : ({m} ? ({a}) : ({b}))")

    def statement(self, i):
        """A call or an assignment, which begins with token i: not a declaration, whose type is followed by a name."""
        j = i
        while j < len(self.tokens) and self.word(j) != ";":
            if self.word(j) in ("{", "}") or j > i and self.word(j - 1) not in STOPS and {self.tokens[j][0], self.tokens[j - 1][0]} == {"name"}:
                return
            j = self.partner[j] + 1 if self.word(j) in ("(", "[") and j in self.partner else j + 1
        body = self.between(i, j)
        if re.search(r"(^|[^=!<>])=[^=]|\(|\+\+|--", body) and not re.match(r"(if|for|while|switch|return|using|delete|goto)\b", body):
            kind = "stale" if FILLS.search(body) else "drop"
            yield self.site(kind, i, j, ";", lambda m: f"{{ if (!{m}) {body} }}")


def sites_of(text):
    return list(Source(text).sites())
