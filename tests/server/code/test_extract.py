"""Extraction of the program from a model's text: a table of what models write."""

import pytest

from rewardfleet_server.code.extract import extract_program

from ...measure import CpuStopwatch

#: Two complete programs.
P = "def add(a, b):\n    return a + b\n"
Q = "import sys\nfor line in sys.stdin:\n    print(line)\n"
#: Programs with a fence in a docstring.
D = 'def f(x):\n    """Doubles.\n\n    ```python\n    f(2)\n    ```\n    """\n    return 2 * x\n'
S = "def f(x):\n    '''\n```\nx\n```\n    '''\n    return x\n"
USE = "print(add(2, 3))\n"
T = "def test_add():\n    assert add(1, 1)\n"
E = 'def f(x):\n    """Doubles."""\n    return 2 * x\n'
C = "x = 1  # as ```\nprint(x)\n"
X, V, F = "a - b\n", "print(5)\n", "5\n"


def fence(program: str, language: str = "python", marks: str = "```") -> str:
    return f"{marks}{language}\n{program}{marks}\n"


def indented(text: str, by: str) -> str:
    return "".join(by + line for line in text.splitlines(keepends=True))


BASH = fence("pip install x\n", "bash")

CASES = {
    # no fence
    "plain": (P, P),
    "plain-without-newline": ("print(1)", "print(1)"),
    "plain-windows": (P.replace("\n", "\r\n"), P),
    "plain-old-mac": (P.replace("\n", "\r"), P),
    "plain-back-ticks-in-a-string": ('x = "```"\nprint(x)\n',) * 2,
    "plain-back-ticks-that-end-a-string": ("x = '''```'''\nprint(x)\n",) * 2,
    "plain-back-ticks-in-a-comment": ("# not `this` but ``that``\nprint(1)\n",) * 2,
    "plain-fence-in-a-docstring": (D, D),
    "plain-bare-fence-in-a-docstring": (S, S),
    "plain-tildes-in-a-docstring": (D.replace("```", "~~~"),) * 2,
    "plain-about-thinking": ("print('<think>')\n", "print('<think>')\n"),
    "prose": ("I cannot solve this.", "I cannot solve this."),
    "prose-with-inline-code": ("Use ```x``` here.", "Use ```x``` here."),
    # one fence
    "python": (fence(P), P),
    "py": (fence(P, "py"), P),
    "py3": (fence(P, "py3"), P),
    "python3": (fence(P, "python3"), P),
    "python3.11": (fence(P, "python3.11"), P),
    "upper-case": (fence(P, "PYTHON"), P),
    "title-case": (fence(P, "Python3"), P),
    "spaced-language": (fence(P, "  python  "), P),
    "language-with-title": (fence(P, 'python title="a.py"'), P),
    "language-with-file": (fence(P, "python:solution.py"), P),
    "language-in-braces": (fence(P, "{.python .numberLines}"), P),
    "no-language": (fence(P, ""), P),
    "language-a-line-too-late": (fence("python\n" + P, ""), P),
    "mislabeled": (fence(P, "cpp"), P),
    "prose-around": (f"Here's the fix:\n\n{fence(P)}\nIt's O(n).", P),
    "prose-with-triple-quotes-around": (f'Mind the """ here.\n{fence(P)}', P),
    "windows": (f"Sure!\n{fence(P)}".replace("\n", "\r\n"), P),
    "spaces-behind-the-fence": (fence(P).replace("```\n", "```  \n"), P),
    "unclosed": (f"Sure:\n```python\n{P}", P + "\n"),
    "unclosed-without-language": (f"```\n{P}", P + "\n"),
    "closed-without-newline": (fence(P).rstrip("\n"), P),
    "closed-behind-code": ("```python\nprint(1)```\nDone.", "print(1)\n"),
    "opened-behind-words": (f"**Answer:** ```python\n{P}```", P),
    "in-one-line": ("```python print(1)```", "print(1)\n"),
    "in-one-line-without-language": ("```print(1)```", "print(1)\n"),
    "blank-lines-first": (fence(f"\n\n{P}"), f"\n\n{P}"),
    "indented": (indented(fence(P), "    "), P),
    "in-a-list": (f"1. ```python\n{indented(P, '   ')}   ```\n", P),
    "indented-inside-only": (fence(indented(P, "  ")), P),
    "quoted": (indented(fence(P), "> "), P),
    "tildes": (fence(P, "python", "~~~"), P),
    "four-ticks": (fence(P, "python", "````"), P),
    "four-ticks-around-three": (fence(S, "python", "````"), S),
    "tildes-around-ticks": (fence("'''\n```\n'''\n", "python", "~~~"), "'''\n```\n'''\n"),
    "in-a-markdown-fence": (fence(f"Hi\n{fence(P)}", "markdown", "````"), P),
    "in-a-short-markdown-fence": (fence(f"Hi\n{fence(P)}", "markdown"), P),
    "back-ticks-in-a-string": (fence('x = "```"\n'), 'x = "```"\n'),
    "back-ticks-end-a-comment": (fence(C), C),
    "fence-in-a-docstring": (fence(D), D),
    "bare-fence-in-a-docstring": (f"Sure.\n{fence(S)}Done.", S),
    "string-never-closed": (fence('x = """\n'), 'x = """\n'),
    "string-escaped": (fence('x = """\\"""\n```\n"""\n'), 'x = """\\"""\n```\n"""\n'),
    "empty": (fence(""), "\n"),
    # several
    "bash-before": (f"{BASH}then\n{fence(P)}", P),
    "bash-after": (f"{fence(P)}then\n{BASH}", P),
    "bash-before-no-language": (f"{BASH}then\n{fence(P, '')}", P),
    "json-and-output": (fence("{}\n", "json") + fence(P) + fence("5\n", "output"), P),
    "console-is-not-python": (fence(">>> f()\n", "python-repl") + fence(P, ""), P),
    "draft-then-final": (f"{fence(Q)}No, wait.\n{fence(P)}", P),
    "program-then-use": (f"{fence(P)}Use it:\n{fence(USE)}", P),
    "program-then-tests": (f"{fence(P)}Test:\n{fence(T)}", P),
    "snippet-then-program": (f"{fence(X)}is wrong:\n{fence(P)}", P),
    "python-before-no-language": (f"{fence(P)}prints\n{fence('def x', '')}", P),
    "program-then-its-output": (f"{fence(V, '')}prints\n{fence(F, '')}", V),
    "stray-fence-behind": (f"{fence(P, '')}Done.\n```", P),
    "stray-fence-with-prose-behind": (f"{fence(P, '')}```\nAnd so on.", P),
    "unclosed-then-another": (f"```python\nx = (\n\n{fence(P)}", P),
    "unclosed-bash-then-python": (f"```bash\npip install x\n{fence(P)}", P),
    "broken-string-then-program": (fence('x = """\n') + fence(E), E),
    "empty-then-program": (fence(P) + fence(""), P),
    "ten-thousand": (fence("x = 1\n") * 9_999 + fence(P), P),
    # thinking
    "thinking": (f"<think>\n{fence(Q)}</think>\n{fence(P)}", P),
    "thinking-plain": (f"<think>Hm.</think>{P}", P),
    "thinking-begun-by-the-prompt": (f"Hm.\n{fence(Q)}So.</think>\n\n{fence(P)}", P),
    "thinking-upper-case": (f"<THINKING>{fence(Q)}</THINKING>{fence(P)}", P),
    "thinking-without-end": (f"<think>\n{fence(P)}", f"<think>\n{fence(P)}"),
    "thinking-in-a-string": (fence("x = '<think></think>'\n"), "x = '<think></think>'\n"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "program"), CASES.values(), ids=CASES.keys())
def test_extraction(text: str, program: str):
    assert extract_program(text) == program


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        "`",
        "```",
        "```\n",
        "```python\n",
        '```python\n"""\n',
        "```python\n'''\n```\n",
        '```\n"""\n```\n',
        "x```\n",
        "~~~",
        "`` ` ```",
        "'",
        '"""',
        "\\",
        "</think",
        "<think>",
        "</think> x",
        "\n",
        " ",
        "> ",
        "{",
        "#",
        "py3.",
        "\t\r",
        ". ",
    ],
)
def test_extraction_takes_linear_time(part: str):
    """Quadratic time would be a minute."""
    watch = CpuStopwatch()
    extract_program(part * (100_000 // len(part)))
    extract_program("```python\n" + part * (100_000 // len(part)))
    extract_program("```" + part * (50_000 // len(part)) + "\n" + "x\n" * 50_000)
    assert watch.seconds < 5


@pytest.mark.parametrize(
    "text", ["\ufeffprint(1)", "```python\n\ufeffprint(1)\n```", "\ufeff```\nprint(1)\n```"]
)
def test_a_byte_order_mark_is_ignored_as_at_the_beginning_of_a_file(text: str):
    assert extract_program(text).strip() == "print(1)"
    assert extract_program("print('\ufeff')") == "print('\ufeff')"
