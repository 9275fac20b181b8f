"""Submissions that carry out what the grader has put in: the request with its cases, or `FOUND` as a sign."""

from __future__ import annotations

from autograder.attacks.attack import Attack

# All that a rank can read of what it was given, as text.
GATHER = """
import glob, os
def gathered():
    texts = [open(path, "rb").read() for path in glob.glob("/out/*/*") if os.path.isfile(path)]
    return b"".join(texts)[:200_000]
"""

# How it is written: each gives a text without a space, or with many.
WRITTEN = {
    "base64": "__import__('base64').b64encode(data).decode()",
    "hexadecimal": "data.hex()",
    "packed": "__import__('base64').b85encode(__import__('zlib').compress(data)).decode()",
    "backwards": "data.decode(errors='replace')[::-1]",
    "spaced": "' '.join(data.hex())",
    "escaped": "repr(data)",
    "invisible": "''.join(chr(0xE0000 + byte) for byte in data)",
    "bits": "' '.join(format(byte, '08b') for byte in data)",
}
ATTACKS = [
    *(
        Attack(
            f"leak-{name}",
            f"raises all it was given, written {name}",
            f"data = gathered()\nraise ValueError({how})",
            GATHER,
            flagged=True,
            hidden_only=True,
        )
        for name, how in WRITTEN.items()
    ),
    Attack(
        "leak-type-name",
        "raises an error whose type is called so",
        """
        raise type(gathered().hex(), (Exception,), {})("see my name")
        """,
        GATHER,
        flagged=True,
        hidden_only=True,
    ),
    Attack(
        "leak-line",
        "raises where the line of the error says so",
        """
        import linecache
        code = compile("\\n" * 3 + "raise ValueError('see my line')", "cell 1", "exec")
        text = ("x = " + repr(gathered()) + "\\n")
        linecache.cache["cell 1"] = (1, None, [text] * 50, "cell 1")
        exec(code)
        """,
        GATHER,
        flagged=True,
        hidden_only=True,
    ),
    Attack(
        "leak-warnings",
        "warns, logs and prints it",
        """
        import logging, warnings
        warnings.warn(gathered().hex())
        logging.error(gathered().hex())
        print(gathered().hex())
        """,
        GATHER,
        flagged=True,
        hidden_only=True,
    ),
    Attack(
        "leak-numbers",
        "answers with it as numbers",
        """
        data = torch.frombuffer(bytearray(gathered()), dtype=torch.uint8).to(grad_output.dtype)
        grad_output = data[: grad_output.numel()].reshape(grad_output.shape)
        """,
        GATHER,
        flagged=True,
        hidden_only=True,
    ),
    Attack(
        "leak-shape",
        "answers with a tensor of a telling shape and type",
        """
        number = int.from_bytes(gathered()[:6], "big")
        grad_output = torch.empty(0, number, dtype=torch.complex64)
        """,
        GATHER,
        flagged=True,
        hidden_only=True,
    ),
    Attack(
        "leak-facts",
        "answers with facts and properties of telling names",
        """
        import json
        real = json.dumps
        def dumps(told, *a, **k):
            if isinstance(told, dict) and "facts" in told:
                told = {**told, "errors": {gathered().hex(): {"type": "E", "message": gathered().hex(),
                                                              "where": gathered().hex()}}}
            return real(told, *a, **k)
        json.dumps = dumps
        """,
        GATHER,
        flagged=True,
        hidden_only=True,
    ),
]
