"""Two tests, and programs and other texts that policies write for them."""

TESTS = {
    "kind": "stdio",
    "cases": [{"stdin": "1 2", "stdout": "3"}, {"stdin": "7", "stdout": "7"}],
}
#: The same tests, as SandboxFusion's and CTRL's rows have them.
CASES = [
    {"input": {"stdin": each["stdin"]}, "output": {"stdout": each["stdout"]}}
    for each in TESTS["cases"]
]
#: Programs that pass both, one and none of them.
RIGHT, HALF, WRONG = "print(sum(map(int, input().split())))", "print(input())", "print(0)"
FENCED = f"So:\n```python\n{RIGHT}\n```\n"
#: What policies write, and its reward.
TEXTS = {
    RIGHT: 1.0, HALF: 0.5, WRONG: 0.0, FENCED: 1.0, f"{RIGHT}<|im_end|>": 1.0, "": 0.0, "Hm.": 0.0,
}  # fmt: skip
