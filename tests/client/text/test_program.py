"""Extraction of the program from a model's text: a table of what models write."""

import pytest

from rewardfleet.text.program import extract_program

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
#: Programs about marks of thoughts and answers.
K = 'def f(x):\n    """Strips until </think>\n    """\n    return x\n'
H = "x = 1  # strip until </think>\nprint(x)\n"
M = "a = '<answer>'\nb = '[/THINK]<|channel|>final<|message|></answer>'\nprint(a, b)  # <|a|>.\n"
ANALYSIS = f"<|channel|>analysis<|message|>Hm.\n```python\n{Q}```\n<|end|>"
FINAL = "<|channel|>final<|message|>"
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
    "empty": (fence(""), fence("")),
    # several
    "bash-before": (f"{BASH}then\n{fence(P)}", P),
    "bash-after": (f"{fence(P)}then\n{BASH}", P),
    "bash-before-no-language": (f"{BASH}then\n{fence(P, '')}", P),
    "json-and-output": (fence("{}\n", "json") + fence(P) + fence("5\n", "output"), P),
    "console-is-not-python": (fence(">>> f()\n", "python-repl") + fence(P, ""), P),
    "draft-then-final": (f"{fence(Q)}No, wait.\n{fence(P)}", P),
    # A program that only defines prints nothing, so what calls it is part of it.
    "program-then-use": (f"{fence(P)}Use it:\n{fence(USE)}", f"{P}\n{USE}"),
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
    "thinking-without-end": (f"<think>\n{fence(P)}", ""),
    "thinking-in-a-string": (fence("x = '<think></think>'\n"), "x = '<think></think>'\n"),
    "thinking-then-an-answer": (f"{fence(Q)}So.</think><answer>{P}</answer>", P.rstrip()),
    "thinking-then-a-program-about-it": (f"Hm.</think>\n{K}", f"\n{K}"),
    "thinking-ends-in-a-docstring": (K, K),
    "thinking-ends-in-a-docstring-in-a-fence": (f"Sure:\n{fence(K)}Done.", K),
    "thinking-ends-in-a-comment": (H, H),
    "thinking-ends-in-a-comment-in-a-fence": (f"Sure:\n{fence(H)}Done.", H),
    "thinking-with-an-unclosed-draft": (f"```python\nx = 1\nNo.</think>\n{fence(P)}", P),
    "thinking-then-a-cut-answer": (f"{fence(Q)}So.</think>\n```python\n{P}", P + "\n"),
    "thinking-about-a-number": (f"{fence(Q)}So #2.</think>\n{P}", f"\n{P}"),
    # other marks
    "answer": (f"<think>\n{fence(Q)}</think>\n<answer>\n{P}</answer>", f"\n{P.rstrip()}"),
    "answer-without-end": (f"<think>Hm.</think><answer>{P}", P),
    "answer-with-a-fence": (f"<think>Hm.</think>\n<answer>\n{fence(P)}</answer>", P),
    "answer-of-a-body": ("<answer>    return 1</answer>", "return 1"),
    "reasoning": (f"<reasoning>{fence(Q)}</reasoning>\n<answer>{P}</answer>\n", P.rstrip()),
    "magistral": (f"[THINK]\n{fence(Q)}[/THINK]{P}", P),
    "harmony": (f"{ANALYSIS}<|start|>assistant{FINAL}{P}<|return|>", P.rstrip()),
    "harmony-with-a-fence": (f"{ANALYSIS}<|start|>assistant{FINAL}{fence(P)}<|return|>", P),
    "harmony-final-only": (f"{FINAL}{P}", P),
    "harmony-without-end": (ANALYSIS, ""),
    "end-of-text": (f"{fence(P)}<|im_end|>\n<|endoftext|>", P),
    "end-of-text-deepseek": (f"{P}<\uff5cend\u2581of\u2581sentence\uff5c>", P.rstrip()),
    "marks-in-strings": (M, M),
    "marks-in-strings-in-a-fence": (fence(M), M),
    # a fence that the prompt began
    "prefilled": (f"{P}```", P),
    "prefilled-windows": (f"{P}```\n\nDone.".replace("\n", "\r\n"), P),
    "prefilled-with-prose": (f"{P}```\n\nExplanation: f(2) returns 4, O(n).", P),
    "prefilled-with-output": (f"{P}```\n\nOutput:\n{fence(F, '')}", P),
    "prefilled-with-use": (f"{V}```\n\nUse it:\n{fence(USE)}", V),
    "prefilled-with-another": (f"{Q}```\nNo, wait.\n{fence(P)}", P),
    "prefilled-body": ("    return a + b\n```\n\nThis adds.", "return a + b\n"),
    "prefilled-closed-behind-code": ("x = 1\nprint(x)```", "x = 1\nprint(x)\n"),
    "prefilled-with-a-fence-in-a-docstring": (f"{D}```\n\nDone.", D),
    "prefilled-tildes": (f"{P}~~~\n\nDone.", P),
    "prefilled-without-language": (f"python\n{P}```\nDone.", P),
    "prefilled-commented": (f"# Adds.\n\n{P}```\nDone.", f"# Adds.\n\n{P}"),
    "prose-then-no-language": (f"Here is the code:\n{fence(P, '')}It adds.", P),
    "heading-then-no-language": (f"# Solution\n\n{fence(P, '')}", P),
    "snippet-then-no-language": (f"x = a - b\nis wrong:\n{fence(P, '')}", P),
}  # fmt: skip


@pytest.mark.parametrize(("text", "program"), CASES.values(), ids=CASES.keys())
def test_extraction(text: str, program: str):
    assert extract_program(text).rstrip("\n") == program.rstrip("\n")


@pytest.mark.parametrize(
    "demo",
    [
        "def main():\n    print(add(1, 2))\n",
        "def check_add():\n    assert add(1, 2) == 3\n",
        "class Demo:\n    sums = [add(1, 2)]\n",
        "print(add(int(input()), 2))\n",
    ],
)
def test_the_block_that_defines_what_is_called_is_the_program(demo: str):
    method = f"class Solution:\n{indented(P, '    ')}"
    for program in (P, method, "add = lambda a, b: a + b\n"):
        text = f"{fence(program, '')}Use it:\n{fence(demo)}"
        assert extract_program(text, {"add"}) == program
        assert extract_program(f"{fence(Q)}{text}", {"add"}) == program
        assert extract_program(f"{text}No:\n{fence(P)}{fence(demo)}", {"add"}) == P
        assert extract_program(text, {"sub"}).endswith(demo)
    body = "return a + b\n"
    assert extract_program(f"    {body}```\n{fence(demo)}", {"add"}) == f"    {body}"
    assert extract_program(fence(body) + fence(demo), {"add"}) == body


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
        "x </think>\n```\n",
        '"""</think>\n',
        "a.b, ",
        "a[",
        "f(x) ",
        "<|end|>",
    ],
)
def test_extraction_takes_linear_time(part: str):
    """Quadratic time would be a minute."""
    watch = CpuStopwatch()
    extract_program(part * (100_000 // len(part)))
    extract_program("```python\n" + part * (100_000 // len(part)))
    extract_program(part * (100_000 // len(part)) + "\n```\n")
    extract_program("```" + part * (50_000 // len(part)) + "\n" + "x\n" * 50_000)
    assert watch.seconds < 5


@pytest.mark.parametrize(
    "text", ["\ufeffprint(1)", "```python\n\ufeffprint(1)\n```", "\ufeff```\nprint(1)\n```"]
)
def test_a_byte_order_mark_is_ignored_as_at_the_beginning_of_a_file(text: str):
    assert extract_program(text).strip() == "print(1)"
    assert extract_program("print('\ufeff')") == "print('\ufeff')"
