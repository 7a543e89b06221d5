"""Tool calls as vLLM reads them, beside ours. `docs/tools-service.md` says where they differ.

Nothing but their own marks are special tokens. `mistral v11` is left out: vLLM reads its form with
tokenizers of that version only, of which no package has one. gpt-oss is read by `oss-harmony`.
"""

import json
import re
from typing import Any

import pytest

from ..client.test_dialects import DATA, RIGHT, cases_of, scored, tools_of

HARMONY = ("harmony", "harmony template")
#: Names of vLLM's parsers where they are not those of the dialects.
PARSERS = {
    "glm": "glm45", "glm 4.7": "glm47", "mistral v7": "mistral", "llama_json": "llama3_json",
    "llama_json tag": "llama3_json", "pythonic llama 4": "llama4_pythonic",
    "deepseek": "deepseek_v3", "deepseek v3.1": "deepseek_v31",
}  # fmt: skip
#: Arguments of valid outputs that vLLM 0.32 reads otherwise, or not at all.
DIFFERENCES: dict[str, list[Any]] = {
    "qwen3_coder": [{"a": None}, {"a": None, "b": "x"}, {"a": "x </parameter> y </function> z"}],
    "minimax_m2": [{"a": "x </parameter> y </function> z"}, {"a": "</invoke> and <invoke"}],
    "mistral": [{"a": "[TOOL_CALLS] [ARGS]"}],
    "mistral v7": [{"a": "[TOOL_CALLS] [ARGS]"}],
    "pythonic": [{"q": "weather in Paris tomorrow?"}],  # of `search.web`
    "pythonic llama 4": [{"q": "weather in Paris tomorrow?"}],
}
GLM = ["</tool_call>", "<tool_call> in words </tool_call> and more", "</arg_value> <arg_key>k"]
DIFFERENCES |= {way: [{"a": each} for each in GLM] for way in ("glm", "glm 4.7")}


def tokenizer_of(way: str) -> Any:
    """Return a tokenizer of bytes that has the marks of a dialect."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {each: n for n, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    template = " ".join(map(str, DATA["dialects"][way].values()))
    marks = re.findall(
        r"<[|\uff5c].*?[|\uff5c]>|</?[\w:]*tool_call>|</?arg_\w+>|\[[A-Z_]+\]", template
    )
    tokens = sorted({*marks, "<think>", "</think>", "<|python_tag|>"})
    fast.add_special_tokens({"additional_special_tokens": tokens})
    return fast


def read_by_vllm(way: str, text: str, tools: Any) -> list[tuple[str, Any]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], tools=tools)
    parser = ToolParserManager.get_tool_parser(PARSERS.get(way, way))
    found = parser(tokenizer_of(way), request.tools).extract_tool_calls(text, request)
    calls = [each.function for each in found.tool_calls]
    return [(call.name, as_json(call.arguments)) for call in calls]


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("way", sorted(DATA["dialects"].keys() - {"mistral v11", *HARMONY}))
def test_valid_outputs_are_read_as_vllm_reads_them(way: str):
    differing = [
        calls[0][1]
        for calls, text in cases_of(way)
        if read_by_vllm(way, text, tools_of(calls)) != [(name, each) for name, each in calls]
    ]
    assert differing == DIFFERENCES.get(way, [])


@pytest.mark.parametrize("way", HARMONY)
def test_valid_outputs_are_read_as_oss_harmony_reads_them(way: str):
    from openai_harmony import HarmonyEncodingName, Role, load_harmony_encoding

    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    for calls, text in cases_of(way):
        tokens = encoding.encode(text.removeprefix("<|start|>assistant"), allowed_special="all")
        messages = encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
        assert [
            [each.recipient.removeprefix("functions."), json.loads(each.content[0].text)]
            for each in messages
        ] == calls


@pytest.mark.parametrize(("text", "cause"), DATA["executed"])
def test_what_vllm_runs_of_hermes_is_what_as_executed_says(text: str, cause: str | None):
    if "<think>" not in text and "<function" not in text:  # what its other parsers read
        ran = read_by_vllm("hermes", text, tools_of([["f", {"a": 1}]]))
        assert ran == ([("f", {"a": 1})] if cause is None else [])
        assert scored(text, RIGHT, as_executed=True).cause == cause
