"""A grammar of small programs, drawn by Hypothesis: their text, for `test_generated_programs`.

Every program ends: loops are over bounded things, or leave when a list has grown; ints stay small. Names: tensors `x y`,
ints `a b n`, a list of ints `xs`, a dict from strings to ints `d`, a set of ints `s`, a log of what happened `log`.
"""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import strategies as st

INTS = ("a", "b", "n")
ERRORS = ("ValueError", "KeyError", "IndexError", "ZeroDivisionError", "LookupError", "Exception")


class Writer:
    """Draws one program. draw: Hypothesis's. The lines are made depth first, so a failing program shrinks well."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.lines: list[str] = []
        self.names = 0

    def pick(self, *choices: Any) -> Any:
        return choices[self._draw(st.integers(0, len(choices) - 1))]

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # ------------------------------------------------------------------ expressions

    def key(self) -> str:
        return self.pick("'p'", "'q'", "'r'", f"f'k{{{self.pick(*INTS)} % 3}}'")

    def integer(self, size: int = 2) -> str:
        if size == 0:
            return self.pick("0", "1", "2", "3", "-1", *INTS)
        part = self.integer
        return self.pick(
            lambda: part(0), lambda: part(0),
            lambda: f"({part(size - 1)} {self.pick('+', '-')} {part(size - 1)})",
            lambda: f"({part(size - 1)} * {part(0)} % 101)",
            lambda: f"({part(size - 1)} {self.pick('//', '%')} {part(0)})",
            lambda: f"xs[{part(0)}]", lambda: "len(xs)", lambda: "sum(xs)", lambda: "max(xs)", lambda: f"d[{self.key()}]",
            lambda: f"d.get({self.key()}, {part(0)})", lambda: "len(s)", lambda: "min(s)",
            lambda: f"({part(0)} if {self.condition()} else {part(0)})",
            lambda: f"(lambda q: q + {part(0)})({part(0)})",
            lambda: f"sum(q + {part(0)} for q in xs)", lambda: f"len([q for q in xs if q > {part(0)}])",
            lambda: f"int('{self.pick('1', '12', 'z')}')", lambda: "sorted(s)[0]", lambda: f"divmod({part(0)}, {part(0)})[1]",
        )()  # fmt: skip

    def condition(self) -> str:
        return self.pick(
            lambda: f"{self.integer(0)} {self.pick('<', '==', '!=', '>=')} {self.integer(0)}",
            lambda: f"{self.integer(0)} in {self.pick('xs', 's')}", lambda: f"{self.key()} in d",
            lambda: self.pick("xs", "d", "s", "not xs"), lambda: f"0 < {self.integer(0)} < 3", lambda: "isinstance(a, int)",
            lambda: f"(w := {self.integer(1)}) > 0 and w < 5", lambda: "int(x.sum()) > 1",
            lambda: f"{self.integer(0)} and {self.integer(0)}", lambda: f"xs == list({self.pick('s', 'xs', 'd')})",
        )()  # fmt: skip

    def tensor(self) -> str:
        return self.pick(
            lambda: f"x + {self.integer(0)}", lambda: f"x * y + {self.integer(0)}", lambda: "x.sin()", lambda: "torch.relu(y - x)",
            lambda: "torch.where(x > 0, x, y)", lambda: "x - x.mean()", lambda: f"torch.stack([x, y])[{self.integer(0)} % 2]",
            lambda: "y.clone()", lambda: "sum([x, y])",
        )()  # fmt: skip

    # ------------------------------------------------------------------ statements

    def block(self, depth: int, size: int, loop: bool = False) -> None:
        for _ in range(self._draw(st.integers(1, 3))):
            self.statement(depth, size, loop)

    def statement(self, depth: int, size: int, loop: bool) -> None:
        choices = [self.simple] * 7
        if size > 0:
            choices += [self.if_, self.for_, self.while_, self.try_, self.with_, self.closure, self.generator, self.try_, self.for_]
            choices += [self.match, self.group, self.class_, self.iterator, self.coroutine, self.leaving, self.nested_break]
            choices += [self.steered, self.stars, self.scopes, self.class_body, self.ends, self.contexts, self.walrus, self.handed_on]
            if sys.version_info >= (3, 12):
                choices.append(self.type_parameters)
        self.pick(*choices)(depth, size, loop)

    def simple(self, depth: int, size: int, loop: bool) -> None:
        integer, key = self.integer, self.key
        text = self.pick(
            lambda: f"{self.pick('a', 'b')} = {integer()}", lambda: f"{self.pick('a', 'b')} += {integer(1)}",
            lambda: f"a, *rest = {self.pick('xs', 's', '(b, n)')}", lambda: "a, b = b, a",
            lambda: f"x = {self.tensor()}", lambda: f"y = {self.tensor()}", lambda: f"x = {self.tensor()}",
            lambda: f"x.add_({integer(0)})", lambda: f"x[{integer(0)}] = {integer(0)}",
            lambda: f"xs.append({integer(1)})", lambda: "a = xs.pop()", lambda: f"xs[{integer(0)}] = {integer(1)}",
            lambda: f"xs.insert({integer(0)}, {integer(0)})", lambda: "xs.sort()", lambda: "xs[1:2] = [a, b]",
            lambda: f"d[{key()}] = {integer(1)}", lambda: f"del d[{key()}]", lambda: f"b = d.pop({key()})",
            lambda: f"d.setdefault({key()}, {integer(0)})", lambda: f"d.update(p={integer(0)})",
            lambda: f"s.add({integer(0)})", lambda: f"s.remove({integer(0)})", lambda: "s |= set(xs)",
            lambda: f"log.append({integer(1)})", lambda: "log.append(f'{a}-{b!r:>4}')", lambda: "log.append(sorted(d))",
            lambda: "graph_break()", lambda: "graph_break()",
            lambda: "xs = [*xs[:3], *s]", lambda: f"d = {{**d, 'q': {integer(0)}}}", lambda: "b = 5; del b; b = n", lambda: "del xs[0]",
            lambda: "a = len({k: [v for v in range(k)] for k in s if k > 0})", lambda: "log.append({v % 2 for v in xs})",
            lambda: "ts = [x, y]; ts.append(x + 1); x = ts.pop()", lambda: "ts = {'x': x, 'y': y}; x, y = ts['y'], ts['x']",
            lambda: "x, y = (y, x) if n else (x, y)", lambda: "a = int(x.sum())",
            lambda: f"raise {self.pick(*ERRORS)}({self.pick('a', 'log', repr('text'))})",
            lambda: f"assert {self.condition()}, a", lambda: f"return {self.pick('a', 'x', 'xs', '(a, b)')}",
            lambda: f"if x.sum() > {integer(0)}: b += 1",
            *([lambda: f"if {self.condition()}: {self.pick('break', 'continue')}"] * 3 if loop else []),
        )()  # fmt: skip
        self.line(depth, text)

    def if_(self, depth: int, size: int, loop: bool) -> None:
        self.line(depth, f"if {self.condition()}:")
        self.block(depth + 1, size - 1, loop)
        if self.pick(True, False):
            self.line(depth, "else:")
            self.block(depth + 1, size - 1, loop)

    def for_(self, depth: int, size: int, loop: bool) -> None:
        over = self.pick(
            "a in range(3)", "a in range(n)", "a in xs", "a in s", "key in d", "a, b in enumerate(xs)", "a, b in zip(xs, range(4))",
            "key, b in d.items()", "a in list(xs)", "a in (q * 2 for q in xs)", "a in reversed(xs)", "a in map(abs, xs)",
        )  # fmt: skip
        self.line(depth, f"for {over}:")
        self.line(depth + 1, "if len(xs) + len(log) > 12: break")
        self.block(depth + 1, size - 1, True)
        if self.pick(False, True):
            self.line(depth, "else:")
            self.block(depth + 1, 0, loop)

    def while_(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("count")
        self.line(depth, f"{name} = 0")
        self.line(depth, f"while {name} < {self.pick('2', '3', 'n')}:")
        self.line(depth + 1, f"{name} += 1")
        self.block(depth + 1, size - 1, True)

    def try_(self, depth: int, size: int, loop: bool) -> None:
        self.line(depth, "try:")
        self.block(depth + 1, size - 1, loop)
        form = self.pick("except", "finally", "both", "else")
        if form != "finally":
            self.line(depth, f"except {self.pick(*ERRORS)} as error:")
            self.line(depth + 1, "log.append(type(error).__name__)")
            if self.pick(False, True):
                self.block(depth + 1, 0, loop)
            if self.pick(False, False, True):
                self.line(depth + 1, self.pick("raise", "raise KeyError(a) from error", "log.append(str(error.args))"))
        if form == "else":
            self.line(depth, "else:")
            self.block(depth + 1, 0, loop)
        if form in ("finally", "both"):
            self.line(depth, "finally:")
            self.line(depth + 1, f"log.append({self.integer(0)})")

    def with_(self, depth: int, size: int, loop: bool) -> None:
        self.line(depth, f"with {self.pick('Noting(log)', 'Noting(log, KeyError)', 'noted(log)', 'torch.no_grad()')}:")
        self.block(depth + 1, size - 1, loop)

    def closure(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("inner")
        self.line(depth, f"def {name}(p, q={self.integer(0)}, *more):")
        if self.pick(False, True):
            self.line(depth + 1, "nonlocal total")
            self.line(depth + 1, "total += p")
        self.line(depth + 1, f"{self.pick('xs', 'log')}.append(q)")
        self.line(depth + 1, self.pick("return p + q + len(more)", "return p // q", "return total"))
        call = self.pick(f"{name}({self.integer(0)})", f"{name}({self.integer(0)}, q={self.integer(0)})", f"{name}(1, *xs)", f"{name}()")
        self.line(depth, f"b = {call}")

    def generator(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("gen")
        self.line(depth, f"def {name}(upto):")
        self.line(depth + 1, "try:")
        self.line(depth + 2, "for step in range(upto):")
        self.line(depth + 3, f"got = yield step {self.pick('+', '*', '//')} {self.pick('1', '2', 'n')}")
        self.line(depth + 3, self.pick("log.append(got)", "xs.append(step)", "if step == 1: return 7", "if step == 2: raise ValueError(step)"))
        self.line(depth + 1, f"finally: log.append({self.pick('1', repr('end'))})")
        self.line(depth, self.pick(
            f"xs += {name}(2)", f"a = sum({name}(3))", f"a = next({name}(1))", f"b = list({name}(2))[-1]",
            f"a, b = {name}(2)", f"g = {name}(3); next(g); a = g.send(5); g.close()",
        ))  # fmt: skip


    # ------------------------------------------------------------------ less common statements

    def match(self, depth: int, size: int, loop: bool) -> None:
        self.line(depth, f"match {self.pick('a', 'xs', 'd', '(a, b)', '[n, *xs]', 'x', repr('text'))}:")
        for _ in range(self._draw(st.integers(1, 3))):
            guard = f" if {self.condition()}" if self.pick(False, False, True) else ""
            case = self.pick(
                "0 | 1", "[p, *rest]", "[]", "{'p': p, **rest}", "int(p)", "(p, 2)", "str() as p", "[int() as p, _]", "list([p])",
                "torch.Tensor()", "bool()",
            )  # fmt: skip
            self.line(depth + 1, f"case {case}{guard}:")
            self.line(depth + 2, f"log.append({case!r})")
            self.block(depth + 2, 0, loop)
        if self.pick(True, False):
            self.line(depth + 1, "case _:")
            self.block(depth + 2, 0, loop)

    def group(self, depth: int, size: int, loop: bool) -> None:
        self.line(depth, "try:")
        self.line(depth + 1, self.pick("pass", f"a = {self.integer()}", "graph_break()"))
        errors = self.pick("[ValueError(a)]", "[ValueError(a), KeyError(b)]", "[KeyError(a), ExceptionGroup('in', [ValueError(b)])]")
        self.line(depth + 1, self.pick(f"raise ExceptionGroup('out', {errors})", "raise ValueError(a)"))
        self.line(depth, f"except* {self.pick('ValueError', 'KeyError', '(ValueError, KeyError)')} as several:")
        self.line(depth + 1, "log.append([type(one).__name__ for one in several.exceptions])")
        self.line(depth + 1, self.pick("pass", "graph_break()", "x = x + 1"))

    def class_(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("Made")
        self.line(depth, f"class {name}:")
        self.line(depth + 1, f"k = {self.integer(1)}")
        self.line(depth + 1, "def __init__(self, v): self.v = v")
        self.line(depth + 1, "@property")
        self.line(depth + 1, "def twice(self): return self.v * 2 + self.k")
        self.line(depth + 1, f"def __add__(self, other): return {name}(self.v + getattr(other, 'v', other))")
        self.line(depth + 1, "def __iter__(self): yield from range(3)")
        if self.pick(True, False):
            self.line(depth, f"class {name}({name}):")
            self.line(depth + 1, "def __init__(self, v): super().__init__(v); log.append('made')")
        self.line(depth, f"o = {name}({self.integer(0)}) + {self.pick('1', f'{name}(2)')}")
        self.line(depth, self.pick("a = o.twice", "xs += o", "o.v = x; x = o.v", "graph_break(); a = o.twice", f"{name}.k = 7; a = o.k"))

    def iterator(self, depth: int, size: int, loop: bool) -> None:
        over = self.pick("iter(xs)", "iter((1, 2, 3))", "iter(range(5))", "zip(xs, (4, 5, 6))", "enumerate(xs)", "iter(d.items())",
                         "reversed(xs)", "iter(d)", "map(abs, xs)", "(q + 1 for q in xs)", "iter('abc')")  # fmt: skip
        self.line(depth, f"it = {over}")
        self.line(depth, self.pick("log.append(next(it, None))", "pass"))
        self.line(depth, self.pick("graph_break()", "x = x + 1"))
        if self.pick(False, True):
            self.line(depth, "for item in it:")
            self.line(depth + 1, "log.append(item)")
            self.line(depth + 1, "if len(log) > 12: break")  # what follows may let it grow
            self.block(depth + 1, 0, True)
        else:
            self.line(depth, self.pick("log.append(list(it))", "log.append(next(it, None))", "log.append(len(tuple(it)))"))

    def coroutine(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("later")
        self.line(depth, f"async def {name}(q):")
        self.line(depth + 1, self.pick("log.append(q)", "q = q + x.sum()", "q = (await other(q)) + 1 if q is None else q"))
        self.line(depth + 1, self.pick("return q", "raise KeyError(1)"))
        self.line(depth, "try:")
        self.line(depth + 1, f"{name}({self.integer(0)}).send(None)")
        self.line(depth, "except StopIteration as stop:")
        self.line(depth + 1, "y = y + stop.value")

    def leaving(self, depth: int, size: int, loop: bool) -> None:
        """A `finally` that takes over, or a `try` that is left in the middle of a loop."""
        self.line(depth, f"for a in {self.pick('range(3)', 'xs', '(n, 2)')}:")
        self.line(depth + 1, "if len(xs) + len(log) > 12: break")
        self.line(depth + 1, "try:")
        self.block(depth + 2, 0, True)
        self.line(depth + 2, self.pick("continue", "graph_break()", "if a: break", "if a > 1: raise KeyError(a)", "pass"))
        self.line(depth + 1, "finally:")
        self.line(depth + 2, self.pick("log.append(a)", "graph_break()", "x = x + 1", "if a == 2: break"))
        self.line(depth, "else:")
        self.line(depth + 1, "log.append('all')")

    def nested_break(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("breaks")
        self.line(depth, f"def {name}(p, q=2):")
        self.line(depth + 1, "nonlocal total")
        self.line(depth + 1, self.pick("p = p + 1", f"total += {self.integer(0)}", "xs.append(q)"))
        self.line(depth + 1, self.pick("graph_break()", "with noted(log): graph_break()", "for _ in range(q): graph_break()"))
        self.line(depth + 1, self.pick("return p * q", "return p + len(xs)", "total += 1; return p", "return p / xs[0]"))
        if self.pick(False, True):
            outer = self.fresh("calls")
            self.line(depth, f"def {outer}(p): return {name}(p - 1) + {self.pick('1', 'p')}")
            name = outer
        self.line(depth, self.pick(f"x = {name}(x)", f"a = {name}(n)", f"y = {name}(y) + {name}(1)"))

    def steered(self, depth: int, size: int, loop: bool) -> None:
        """A generator that is sent to, thrown into, closed, or left half consumed, with breaks in between."""
        inner, name, held = self.fresh("part"), self.fresh("gen"), self.fresh("held")
        self.line(depth, f"def {inner}(upto):")
        self.line(depth + 1, "try:")
        self.line(depth + 2, "for step in range(upto):")
        self.line(depth + 3, self.pick("yield step", "log.append((yield step))", "x.sum() if (yield step + n) else graph_break()"))
        self.line(depth + 1, f"except {self.pick(*ERRORS)} as error:")
        self.line(depth + 2, self.pick("yield repr(error)", "raise", "return 9", "raise KeyError(upto) from error", "log.append('caught')"))
        self.line(depth + 1, f"finally: log.append({self.pick('1', repr('closed'), 'upto')})")
        self.line(depth, f"def {name}(upto):")
        self.line(depth + 1, self.pick(f"total = yield from {inner}(upto)", f"total = 3; yield from {inner}(upto)", f"total = {inner}(upto)"))
        self.line(depth + 1, self.pick("yield total", "log.append(total)", "return total"))
        self.line(depth, f"{held} = {name}({self.pick('0', '2', '3', 'n')})")
        steps = [f"log.append(next({held}, 'none'))", f"{held}.send(None)", f"log.append({held}.throw(KeyError(a)))",
                 f"{held}.throw(ValueError)", f"{held}.close()", f"log.append(list({held}))", "graph_break()", f"del {held}; {held} = iter(())",
                 f"a, *_ = {held}", "x = x + 1"]  # fmt: skip
        for _ in range(self._draw(st.integers(1, 4))):
            self.line(depth, self.pick(*steps))

    def stars(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("takes")
        self.line(depth, f"def {name}(p, /, q=1, *more, key=2, **named): return p + q * key + len(more) + sum(named.values())")
        self.line(depth, self.pick(
            f"a = {name}(*xs)", f"a = {name}(1, *xs, *s, key=n)", f"a = {name}(a, **{{'key': b, 'w': 1}})", f"a = {name}(**d)",
            f"a = {name}(*(a, b), **d)", f"x = {name}(x, y)", f"a = {name}(p=1)", f"a = {name}(1, 2, q=3)",
        ))  # fmt: skip
        self.line(depth, self.pick(
            "for a, *rest in ([1, 2, 3], (b,), [n, n]): log.append(rest)", "(a, b), *rest = [(1, n), *xs]", "*rest, a = xs",
            "a, *rest, b = xs", "[a, (b, *rest)] = [n, xs]", "xs = [*(q + 1 for q in xs), *s][:4]", "log.append((*xs, *d, *'ab'))",
            "d = {**d, **{'p': a}, 'q': b}", "s = {*s, *xs}", "xs[0:0] = *rest, a = 1, 2", "t = xs[:], *rest = s, 1",
        ))  # fmt: skip

    def scopes(self, depth: int, size: int, loop: bool) -> None:
        """Cells that come and go, and global names."""
        name, cell = self.fresh("scope"), self.fresh("v")
        self.line(depth, f"{cell} = {self.integer(1)}")
        self.line(depth, f"def {name}(p={self.integer(0)}):")
        self.line(depth + 1, self.pick(f"nonlocal {cell}", f"nonlocal {cell}, total", "global shared", f"nonlocal {cell}; global shared"))
        self.line(depth + 1, self.pick(f"{cell} = p", f"del {cell}; {cell} = 2", f"shared = {cell if self.pick(True, False) else 'p'}", "graph_break()"))
        self.line(depth + 1, self.pick("graph_break()", "pass", "x.add_(p)"))
        self.line(depth + 1, self.pick("return p", f"return [{cell} for _ in range(2)]", f"return lambda: {cell}", f"return lambda q={cell}: q + p"))
        self.line(depth, f"made = {name}()")
        self.line(depth, self.pick("graph_break()", f"{cell} = x", "pass", f"{cell} = 7"))
        self.line(depth, self.pick("log.append(made() if callable(made) else made)", f"log.append(str({cell}))", f"del {cell}; {cell} = 3",
                                   "log.append(shared)", f"x = x + {cell}"))  # fmt: skip

    def class_body(self, depth: int, size: int, loop: bool) -> None:
        name, base = self.fresh("Body"), self.pick("", "(dict)", "(list)", "(Exception)", "(object, metaclass=type)")
        self.line(depth, f"class {name}{base}:")
        self.line(depth + 1, self.pick("nonlocal total; total += 1", "pass"))  # the declaration has to come first
        for _ in range(self._draw(st.integers(1, 3))):
            self.line(depth + 1, self.pick(
                f"k = {self.integer(1)}", "j = [q for q in range(3)]", "for i in range(2): k = i",
                "z = 1; del z", "t = x.sum()", "def grow(self, v=a): return [self.k, v]", "k = (lambda: total)()", "log.append(__qualname__)",
                "def __call__(self, v): return v + 1", "def __len__(self): return 0", "__slots__ = ('k1',)", "def __getattr__(self, key): return key",
                "@staticmethod\n" + "    " * (depth + 1) + "def make(v): return v * 2", "if total: k = 4",
                "@classmethod\n" + "    " * (depth + 1) + "def of(cls, v): return cls", "def __eq__(self, other): return True",
                "def __init_subclass__(cls, **named): log.append(cls.__name__)", "def __bool__(self): graph_break(); return False",
            ))  # fmt: skip
        self.line(depth, f"o = {name}()")
        self.line(depth, self.pick(
            "a = getattr(o, 'k', 3)", "log.append(o.grow())", "x = o(x)", "log.append(bool(o))", "graph_break(); log.append(o.k)", "y = y + o.t",
            f"class {name}Child({name}): pass", "log.append(o.make(a))", "log.append(o == 3)", "log.append(type(o).__mro__[0].__name__)",
            "log.append(o.of(1) is type(o))", "o.k1 = x; graph_break(); x = o.k1",
        ))  # fmt: skip

    def ends(self, depth: int, size: int, loop: bool) -> None:
        """`finally` within `finally`, with returns, breaks of the graph and exceptions in each place."""
        name = self.fresh("ends")
        self.line(depth, f"def {name}(p):")
        self.line(depth + 1, "nonlocal x, total")
        body = ["graph_break()", "p += 1", "raise KeyError(p)", "return p", "p = p // n", "x = x * 2", "log.append(p)", "total += int(x.sum())"]
        self.line(depth + 1, "try:")
        self.line(depth + 2, "try:")
        self.line(depth + 3, self.pick(*body))
        self.line(depth + 3, self.pick(*body))
        self.line(depth + 2, f"except {self.pick(*ERRORS)} as error:")
        self.line(depth + 3, self.pick(*body, "raise", "raise ValueError(p) from None", "log.append(error.args)"))
        self.line(depth + 2, "else:")
        self.line(depth + 3, self.pick(*body))
        self.line(depth + 2, "finally:")
        self.line(depth + 3, self.pick(*body))
        self.line(depth + 1, "finally:")
        self.line(depth + 2, self.pick(*body[:2], *body[5:], "pass"))
        self.line(depth + 1, "return x")
        self.line(depth, self.pick(f"log.append(str({name}(n)))", f"y = y + {name}(a)", f"a = {name}(1)"))

    def contexts(self, depth: int, size: int, loop: bool) -> None:
        first = self.pick("Noting(log) as a", "noted(log) as b", "Noting(log, Exception)", "torch.no_grad()", "contextlib.suppress(KeyError)")
        second = self.pick("noted(log)", "Noting(log, LookupError) as b", "contextlib.ExitStack() as stack", "contextlib.nullcontext(x) as y")
        self.line(depth, f"with {first}, {second}:")
        if "stack" in second:
            self.line(depth + 1, self.pick("stack.callback(log.append, a)", "stack.enter_context(Noting(log))", "stack.push(Noting(log, KeyError))"))
        self.line(depth + 1, self.pick("graph_break()", "x = x + 1", "a = int(x.sum())", "raise KeyError(n)", "del xs[0]"))
        self.block(depth + 1, 0, loop)
        self.line(depth + 1, self.pick("graph_break()", "pass", "raise ValueError(a)", "return log", "log.append(torch.is_grad_enabled())"))

    def walrus(self, depth: int, size: int, loop: bool) -> None:
        self.line(depth, self.pick(
            "xs = [w := q + 1, w * 2] if (q := n) else [q]", "log.append([last := q for q in xs]); log.append(last if xs else None)",
            "while (a := a - 1) > 0: log.append(a)", "if (m := max(xs, default=n)) > 1: x = x + m", "x = (t := x + 1) * t",
            "log.append((w := len(xs), w + 1))", "if (t := x.sum()) > 0: y = y + t", "a = sum((w := q) for q in xs) + (w if xs else 0)",
            "log.append({(k := str(q)): k for q in xs})", "while len(log) < 4 and (w := next(iter(xs), None)) is not None: log.append(w)",
        ))  # fmt: skip

    def handed_on(self, depth: int, size: int, loop: bool) -> None:
        """An iterator that is begun here and used by another function, which may break."""
        name = self.fresh("uses")
        self.line(depth, f"def {name}(it, p):")
        self.line(depth + 1, self.pick("p = p + 1", "graph_break()", "log.append(next(it, None))", "for q in it: p = p + 1; break"))
        self.line(depth + 1, self.pick("return p, list(it)", "return next(it), p", "return p, sum(1 for _ in it)", "return p, it"))
        over = self.pick("iter(xs)", "enumerate(xs)", "zip(xs, range(4))", "iter(d)", "reversed(xs)", "iter(range(4))", "map(abs, xs)",
                         "filter(None, xs)", "(q for q in xs)", "iter('abc')", "iter(d.items())", "iter(sorted(s))")  # fmt: skip
        self.line(depth, f"it = {over}")
        self.line(depth, self.pick("next(it, None)", "pass", "graph_break()", "xs.append(3)"))
        self.line(depth, f"made = {name}(it, {self.pick('x', 'n', 'a')})")
        self.line(depth, self.pick("log.append(len(list(it)))", "log.append(str(made[0]))", "graph_break(); log.append(next(it, None))"))

    def type_parameters(self, depth: int, size: int, loop: bool) -> None:
        name = self.fresh("generic")
        self.line(depth, f"def {name}[T](v: T, w: T | None = None) -> T: return v if w is None else w")
        self.line(depth, self.pick(f"x = {name}(x)", f"a = {name}({self.integer(0)}, 3)", f"type {name}Alias = list[int]"))


@st.composite
def programs(draw: Any) -> str:
    """The text of `def program(x, y, n, xs, d, s, log)`."""
    writer = Writer(draw)
    writer.line(0, "def program(x, y, n, xs, d, s, log):")
    writer.line(1, "a, b, total = 1, 2, 0")
    for _ in range(draw(st.integers(2, 5))):
        writer.statement(1, 2, False)
    writer.line(1, "return x, y, a, b, total, xs, d, s")
    return "\n".join(writer.lines) + "\n"
