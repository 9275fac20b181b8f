"""Submissions that take a roundabout way to the record, which nothing in their text names straight: a
function that looks names up under another name, a module handed on, a name put together, text that is run.

Each gets the sum with a reduce and a broadcast, which put as many bytes on the network as an all-reduce does,
and has the record tell of one all-reduce: what was counted on the network does not contradict it.
"""

from __future__ import annotations

import textwrap

from autograder.attacks.attack import Attack

# Two calls that are told as one. Uses only what `recorder` offers, and no name that is looked for.
TOLD_AS_ONE = """
part = grad_output.contiguous().clone()
dist.reduce(part, 0, group=ctx.group)
one = recorder.last
dist.broadcast(part, 0, group=ctx.group)
two = recorder.last
one.op, one.posted, one.end = "all_reduce", two.posted, two.posted
two.start, two.posted, two.end = one.start - 1000.0, one.start - 1000.0, one.start - 1000.0
grad_output = part
"""
BUILT = '"current_" + "rec" + "order"'
MODULE = '"labkit." + "rec" + "ord.current"'
# The same names, of parts that each could stand for something else.
NAMED = 'dot, tail, two = ".", "recorder", "_" * 2\n'
QUIET_MODULE = '"labkit" + dot + "record" + dot + "current"'
# Finds the recorder by a function `look` that has a library look up an attribute.
BY_LOOKING = f"""
names = look(torch.nn.functional.relu, two + "globals" + two)
bring = names[two + "builtins" + two][two + "import" + two]
recorder = getattr(bring({QUIET_MODULE}, fromlist=["x"]), "current_" + tail)()
"""


def _reached(id: str, says: str, how: str, above: str = "import labkit") -> Attack:
    backward = textwrap.dedent(how).strip() + "\n" + TOLD_AS_ONE.strip()
    return Attack(id, says, backward, above, flagged=True, right_numbers=True)


def quietly(id: str, says: str, how: str, above: str) -> Attack:
    return _reached(id, says, NAMED + textwrap.dedent(how).strip(), above)


ATTACKS = [
    _reached(
        "record-by-handed-getattr",
        "has another function look up names, which it is handed with them",
        f"""
        recorder = labkit
        for name in ("rec" + "ord", "current", {BUILT}):
            [recorder] = map(getattr, [recorder], [name])
        recorder = recorder()
        """,
    ),
    _reached(
        "record-by-handed-module",
        "hands the module on to a function, where it has another name",
        f"recorder = of(labkit, {BUILT})()",
        """
        import labkit
        def of(package, name):
            return getattr(package.record.current, name)
        """,
    ),
    _reached(
        "record-by-decoy-import",
        "gives a module a name that stands for a harmless one in another function",
        "recorder = lab.record.current._of_this_process[0]\ndecoy",
        """
        import labkit as lab
        def decoy():
            import math as lab
        """,
    ),
    _reached(
        "record-by-closure",
        "takes it out of the function that records, by names in other letters",
        """
        closure, contents = texts()
        cells = [look(cell, contents) for cell in look(dist.ProcessGroup.reduce, closure)]
        recorder = [cell for cell in cells if hasattr(cell, "page")][0]
        """,
        """
        def look(thing, name):
            return getattr(thing, name)
        def texts():
            return ["".join(map(str.lower, pair)) for pair in (("__CLO", "SURE__"), ("CELL_", "CONTENTS"))]
        """,
    ),
    _reached(
        "record-by-formatter",
        "has what fills in texts look up attributes",
        f"""
        found, _ = string.Formatter().get_field("0." + "rec" + "ord.current." + {BUILT}, (labkit,), {{}})
        recorder = found()
        """,
        "import labkit, string",
    ),
    _reached(
        "record-by-annotation",
        "has the text of an annotation looked at, which runs it",
        f"""
        def hinted(x): pass
        look(hinted, "__annot" + "ations__")["x"] = "labkit.rec" + "ord.current." + {BUILT} + "()"
        recorder = typing.get_type_hints(hinted, {{"labkit": labkit}}, {{}})["x"]
        """,
        """
        import labkit, typing
        def look(thing, name):
            return getattr(thing, name)
        """,
    ),
    _reached(
        "record-by-pickle",
        "has torch load bytes that call what they name",
        """
        data = b"cbuiltins\\nsetattr\\n(ctorch.nn\\nModule\\nS'found'\\n"
        data += b"clabkit.record.current\\ncurrent_recorder\\n)RtR."
        try:
            torch.load(io.BytesIO(data), weights_only=False)
        except (ValueError, RuntimeError, AttributeError, TypeError, EOFError):
            pass
        recorder = torch.nn.Module.found
        """,
        "import io",
    ),
    _reached(
        "record-by-timing",
        "has a text timed, which runs it",
        f"""
        found = []
        source = "import " + {MODULE} + " as c; found.append(c." + {BUILT} + "())"
        timeit.timeit(source, number=1, globals={{"found": found}})
        recorder = found[0]
        """,
        "import timeit",
    ),
    _reached(
        "record-by-builtins-of-another",
        "runs a text with what another module calls the builtins",
        f"""
        found = {{}}
        enum.bltns.exec("import " + {MODULE} + " as c; recorder = c." + {BUILT} + "()", found)
        recorder = found["recorder"]
        """,
        "import enum",
    ),
    _reached(
        "record-by-dataclass",
        "has what writes the methods of dataclasses write a function",
        f"""
        text = "import " + {MODULE} + " as c"
        recorder = dataclasses._create_fn("f", (), [text, "return c." + {BUILT} + "()"])()
        """,
        "import dataclasses",
    ),
    _reached(
        "record-by-forward-reference",
        "has a list's kind looked at, which is a text",
        f"""
        kind = typing.List["labkit.rec" + "ord.current." + {BUILT} + "()"].__args__[0]
        recorder = kind._evaluate({{"labkit": labkit}}, {{}}, frozenset())
        """,
        "import labkit, typing",
    ),
    _reached(
        "record-by-array",
        "has numpy read an array of objects",
        """
        head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\\n"
        data = np.lib.format.magic(1, 0) + len(head).to_bytes(2, "little") + head
        data += b"(lclabkit.record.current\\ncurrent_" + b"recorder\\n(tRa."
        recorder = np.lib.format.read_array(io.BytesIO(data), True)[0]
        """,
        "import io\nimport numpy as np",
    ),
    _reached(
        "record-by-pattern-of-a-class",
        "looks up an attribute by a pattern whose class says which one",
        f"""
        recorder = labkit
        for name in ("rec" + "ord", "current", {BUILT}):
            recorder = look(recorder, name)
        recorder = recorder()
        """,
        """
        import labkit
        class Anything(type):
            def __instancecheck__(cls, thing):
                return True
        def look(thing, name):
            Pattern = Anything("Pattern", (), {"__match_args__": (name,)})
            match thing:
                case Pattern(found):
                    return found
        """,
    ),
    quietly(
        "record-by-redirection",
        "redirects another attribute of the interpreter's than where it writes to",
        f"""
        peek = Peek(None)
        with peek:
            table = peek._old_targets[0]
        recorder = getattr(table[{QUIET_MODULE}], "current_" + tail)()
        """,
        """
        import contextlib
        class Peek(contextlib.redirect_stdout):
            _stream = "modules"
        """,
    ),
    quietly(
        "record-by-wrapping",
        "has what wraps functions copy the attributes that it names",
        BY_LOOKING,
        """
        import functools
        class Kept:
            pass
        def look(thing, name):
            kept = Kept()
            functools.wraps(thing, assigned=(name,), updated=())(kept)
            return kept.__dict__[name]
        """,
    ),
    quietly(
        "record-by-pattern-of-a-dataclass",
        "looks up an attribute by a pattern of a dataclass, of which it says that everything is one",
        BY_LOOKING,
        """
        import abc, dataclasses
        def look(thing, name):
            Pattern = dataclasses.make_dataclass("Pattern", [name], bases=(abc.ABC,))
            Pattern.register(type(thing))
            match thing:
                case Pattern(found):
                    return found
        """,
    ),
    quietly(
        "record-by-tree",
        "has what reads trees look up what it says is a member of an enum",
        f"""
        member = {{two + "enum" + two: True, "fqn": "sys:modules", "name": {QUIET_MODULE}}}
        recorder = getattr(enum_object_hook(member), "current_" + tail)()
        """,
        "from torch.utils._pytree import enum_object_hook",
    ),
    quietly(
        "record-by-field",
        "renames a field of a dataclass, whose name stands in what is run for another",
        f"""
        (one,) = dataclasses.fields(Base)
        module = {QUIET_MODULE}
        one.name = f"x, found.append({{two}}import{{two}}({{module!r}}, "
        one.name += f"fromlist=['x']).current_{{tail}}()), self.x"
        @dataclasses.dataclass(init=False, repr=False)
        class More(Base):
            pass
        More() == More()
        recorder = found[0]
        """,
        """
        import dataclasses
        found = []
        @dataclasses.dataclass
        class Base:
            x: int = 0
        """,
    ),
    quietly(
        "record-by-dispatch",
        "registers a function whose annotation is a text, which is run for its class",
        f"""
        module = {QUIET_MODULE}
        told = f"found.append({{two}}import{{two}}({{module!r}}, fromlist=['x']).current_{{tail}}())"
        def annotated(x: told):
            pass
        try:
            functools.singledispatch(general).register(annotated)
        except TypeError:
            pass
        recorder = found[0]
        """,
        """
        import functools
        found = []
        def general(x):
            pass
        """,
    ),
    quietly(
        "record-by-temporary-file",
        "puts something else in the place of a temporary file's own, whose attributes it has",
        BY_LOOKING,
        """
        import tempfile
        def look(thing, name):
            with tempfile.NamedTemporaryFile() as file:
                own, file.file = file.file, thing
                found = file.__getattr__(name)
                file.file = own
                return found
        """,
    ),
    quietly(
        "record-by-compiler",
        "has torch compile something with a compiler of its own, which puts names into its code",
        BY_LOOKING,
        """
        def look(thing, name):
            two = "_" * 2
            def backend(graph_module, inputs):
                for node in graph_module.graph.nodes:
                    if node.op == "call_function":
                        node.op, node.args = "get_attr", ()
                        node.target = "forward." + two + "func" + two + "." + name
                graph_module.recompile()
                return graph_module.forward
            return torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        """,
    ),
    _reached(
        "record-by-object",
        "sends bytes where the other rank expects an object, and these say what it calls",
        """
        ranks = dist.get_process_group_ranks(ctx.group)
        data = torch.tensor([ord(c) for c in TEXT.replace("|", ".")], dtype=torch.uint8)
        got = [None]
        for source in ranks:
            if dist.get_rank() == source:
                dist.broadcast(torch.tensor([data.numel()]), source, group=ctx.group)
                dist.broadcast(data, source, group=ctx.group)
            else:
                dist.broadcast_object_list(got, source, group=ctx.group)
        recorder = got[0]
        """,
        'TEXT = "clabkit|record|current\\ncurrent_recorder\\n(tR|"',
    ),
    Attack(
        "globals-by-a-made-name",
        "looks up what leads to every module, by a name that is made, of a function it was handed",
        """
        pad = "_" * 2
        look = lambda thing, name: getattr(thing, pad + name + pad)
        bring = look(torch.nn.functional.relu, "globals")[pad + "builtins" + pad][pad + "import" + pad]
        bring("labkit." + "rec" + "ord.current", fromlist=["x"])
        """,
    ),
]
