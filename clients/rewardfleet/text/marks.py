"""The marks of models around thoughts, turns, tools' answers and ends: one table of each.

A row has regular expressions, and the families of models whose chat template, tokenizer or model
card documents them. `role` stands for the name of who speaks.
"""

import re
from typing import Literal

Role = Literal["assistant", "thought", "call", "user", "tool", "system", "end"]

#: Names of thoughts, in any brackets: an opening mark at the beginning of a turn needs no row.
_NAME = (
    r"(?:\w{1,20}[:_|])?(?:think|thought|reason|scratch|analy[sz]|reflect|deliberat|rational)"
    r"\w{0,20}"
)
#: What opens thoughts wherever it is, what ends them, and who writes them so.
THOUGHTS = [
    (r"<think>", r"</think>", "DeepSeek-R1, Qwen3, QwQ, GLM-4.5, Nemotron, MiniMax, OLMo 3, Phi-4"),
    (r"<thinking>", r"</thinking>", "Reflection, Claude's prompts"),
    (r"<thought>", r"</thought>", "EXAONE Deep"),
    (r"<reasoning>", r"</reasoning>", "GRPO's usual format (TRL, Unsloth)"),
    (r"<scratchpad>", r"</scratchpad>", "Hermes 3, Claude's prompts"),
    (r"<longcat_think>", r"</longcat_think>", "LongCat-Flash"),
    (r"<seed:think>", r"</seed:think>", "Seed-OSS"),
    (r"\[THINK\]", r"\[/THINK\]", "Magistral, Ministral 3"),
    (r"\u25c1think\u25b7", r"\u25c1/think\u25b7", "Kimi-VL, Kimi k1.5"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>", "OpenThinker, Sky-T1"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>", "Command A Reasoning"),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", "Apertus"),
    (r"<unused94>(?:thought)?", r"<unused95>", "MedGemma"),
    (r"<\|channel>thought", r"<channel\|>", "Gemma 4"),
    (r"\[unused16\]", r"\[unused17\]", "openPangu"),
    (r"<\|open\|>think<\|sep\|>", r"<\|close\|>think<\|sep\|>", "Kimi K3"),
    (r"<\|plamo:begin_think:plamo\|>", r"<\|plamo:end_think:plamo\|>", "PLaMo 3"),
    (r"<\|think\|>", r"<\|content\|>", "Solar Open"),
    (r"<\|content_thinking\|>", r"<\|end_message\|>", "Inkling"),
]  # fmt: skip

#: The same in words, at the beginning of a text.
THOUGHTS_IN_WORDS = [
    ("analysis", "assistantfinal", "gpt-oss, decoded without special tokens"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "Apriel"),
    ("Here is my thought process:", "Here is my response:", "Granite 3.2"),
    ("Here's my thought process:", "Here's my response:", "Granite 3.2"),
]

#: What surrounds the program of an answer.
_ANSWERS = [
    (r"<(?:final_)?answer>", r"</(?:final_)?answer>", "DeepSeek-R1's and Hunyuan's format"),
    (r"<solution>", r"</solution>", "prompts"),
    (r"<response>", r"</response>", "Granite, ERNIE 4.5"),
    (r"<\|begin_of_solution\|>", r"<\|end_of_solution\|>", "OpenThinker, Sky-T1"),
    (r"<\|START_RESPONSE\|>", r"<\|END_RESPONSE\|>", "Command A Reasoning"),
    (r"\[BEGIN\]", r"\[DONE\]", "the prompt of MBPP's paper"),
    (r"\[PYTHON\]", r"\[/PYTHON\]", "Code Llama"),
    (r"<python>", r"</python>", "prompts"),
    (r"(?:<pre>\s*)?<code(?: [^<>]{0,80})?>", r"</code", "HTML"),
    (r"<\|python_tag\|>", r"<\|eo[mt]_id\|>", "Llama 3.1"),
    (r"={3,}START={3,}", r"={3,}END={3,}", "prompts"),
]

_ROLE = (
    r"(system|developer|user|human|assistant|chatbot|model|ai|bot|tool|observation|ipython"
    r"|environment)"
)
_REST, _FORMAT = "[^<]{0,80}", r"(?:<\|constrain\|>\w{1,9})?<\|message\|>"
#: What begins a turn; the group is the role. The second pattern of gpt-oss is that of a tool.
TURNS = [
    (rf"<\|im_start\|>{_ROLE}[^\n<'\"]{{0,40}}(?:<\|im_sep\|>|\n)?", "ChatML: Qwen, Hermes, Phi-4"),
    (rf"<\|(?:start_header_id|header_start)\|>{_ROLE}<\|(?:end_header_id|header_end)\|>", "Llama"),
    (rf"(?:<start_of_turn>|<\|turn>){_ROLE}\n?", "Gemma"),
    (rf"<\|im_\w{{1,10}}\|>{_ROLE}<\|im_middle\|>", "Kimi"),
    (rf"<\|(?:begin_)?{_ROLE}(?:_start)?\|>", "GLM, Phi, OLMo, Zephyr; Apriel; Apertus"),
    (rf"<role>{_ROLE}</role>", "Ling"),
    (rf"<\uff5c(?:hy_)?{_ROLE}\uff5c>", "DeepSeek, Hunyuan"),
    (r"<\uff5c(tool)\u2581outputs?\u2581begin\uff5c>", "DeepSeek"),
    (r"<\uff5ctool\u2581outputs?\u2581(end)\uff5c>", "DeepSeek"),
    (rf"<\|start_of_role\|>{_ROLE}[^<\n]{{0,40}}<\|end_of_role\|>", "Granite"),
    (r"<\|START_OF_TURN_TOKEN\|><\|(\w{1,10})_TOKEN\|>", "Command"),
    (rf"\[\|{_ROLE}\|\]", "EXAONE"),
    (rf"\]~b\]{_ROLE}\n?", "MiniMax"),
    (rf"<seed:bos>{_ROLE}\n?", "Seed-OSS"),
    (rf"(?:(?:<\|start\|>assistant|\A\s?to=){_REST})?<\|channel\|>(\w{{1,12}}){_REST}{_FORMAT}",
     "gpt-oss"),
    (rf"<\|start\|>(?!assistant)([\w.]{{1,80}}){_REST}(?:<\|channel\|>{_REST})?<\|message\|>",
     "gpt-oss"),
    (r"(?-i:\[(/?INST|/?TOOL_RESULTS)\])", "Mistral, Llama 2"),
]  # fmt: skip
#: The same for a text with a line `assistant`: ChatML that was decoded without special tokens.
BARE_TURN = r"(?m:^(user|tool|assistant)\n)"
#: Who speaks, by the name in a mark that is not the role itself. Others are tools.
ROLES: dict[str, Role] = {
    **dict.fromkeys(("assistant", "model", "ai", "bot", "chatbot", "final"), "assistant"),
    **dict.fromkeys(("/inst", "/tool_results", "end"), "assistant"),  # what follows an end
    **dict.fromkeys(("user", "human", "inst"), "user"),
    **dict.fromkeys(("analysis", "commentary"), "thought"),
    **dict.fromkeys(("system", "developer"), "system"),
}

#: What surrounds what a tool answered within a turn.
TOOL_ANSWERS = [
    (r"<tool_response>", r"</tool_response>", "Qwen, Hermes, GLM"),
    (r"<tool_(?:results?|outputs?)>", r"</tool_(?:results?|outputs?)>", "Cohere and prompts"),
    (r"<function_results?>", r"</function_results?>", "OLMo, Claude's prompts"),
    (r"<\|tool_response>", r"<tool_response\|>", "Gemma 4"),
    (r"<\|START_TOOL_RESULT\|>", r"<\|END_TOOL_RESULT\|>", "Command"),
    (r"<(?:observation|execution_result)>", r"</(?:observation|execution_result)>", "agents"),
    (r"<information>", r"</information>", "Search-R1"),
    (r"<interpreter>", r"</interpreter>", "ReTool"),
    (r"\[TOOL_RESULTS\]", r"\[/TOOL_RESULTS\]", "Mistral"),
]

#: Tokens that end a turn wherever they are.
_ENDS = (
    r"<\|(?:im_end|endoftext|eot_id|eom_id|eot|end_of_text|end_of_turn|END_OF_TURN_TOKEN|return|end)"
    r"\|>|<\uff5cend\u2581of\u2581sentence\uff5c>|<turn\|>|<end_of_(?:turn|utterance)>|</s>"
    r"|<(?:seed:)?eos>|\[\|endofturn\|\]|\[EOS\]"
)
#: Tokens that end a text, and nothing else. Not `[PAD]` and the like: `x[PAD]` may end a program.
LAST_TOKEN = re.compile(
    rf"(?:{_ENDS}|<([|\uff5c])(?!end_of_box)[^<>|\uff5c\n]{{1,40}}\1>|\[\|[a-z]{{1,40}}\|\]|</?s>"
    r"|<(?:seed:)?(?:eos|bos|pad|unk|eot|eod|sep|EOS|EOT|EOD)>"
    r"|<end_of_(?:utterance|sentence)>|<(?:SPECIAL|extra_id|reserved)_\d{1,4}>"
    r"|\[(?:EOS|EOT|/INST)\]|\[e~\[)\s*\Z"
)
#: No mark has more characters, and each ends with one of these.
LONGEST, LAST = 64, (">", "]", "[")


def _hints(*patterns: str) -> list[tuple[str, re.Pattern[str]]]:
    """Return expressions with the character that each begins with, which is sought first.

    Python finds one character a hundred times as fast as one of several, or as a word.
    """
    return [(pattern.removeprefix("\\")[0], re.compile(pattern)) for pattern in patterns]


#: Texts of which every mark of a turn, of a tool's answer or of thoughts has one.
TURN_HINTS = _hints(
    r"<(?:[|\uff5c]|seed:|role>|/s>|eos>)", r"\[(?:\||INST\]|TOOL_R|EOS\])", r"\]~b\]", r"\|>",
    "end_of_", "start_of_",
)  # fmt: skip
TOOL_HINTS = _hints(
    r"<(?:tool_[ro]|function_re|\|tool_re|\|START_TOOL|observation>|execution_re|information>"
    r"|interpreter>)",
    r"\[TOOL_RESULTS\]",
)
THOUGHT_HINTS = (
    "think", "thought", "reason", "scratch", "analy", "reflect", "deliberat", "rational", "inner_",
    "unused", "channel",
)  # fmt: skip


def _any(patterns: list[str]) -> str:
    return "|".join(patterns)


ANSWERS = [
    (re.compile(rf"^[ \t]*{start}", flags), re.compile(end, flags))
    for flags in [re.IGNORECASE | re.MULTILINE]
    for start, end, _ in _ANSWERS
]
_END = (
    rf"[|\uff5c]?(?:(?:/|end[_\u2581](?:of[_\u2581])?){_NAME}|{_NAME}[_\u2581]end)"
    r"[|\uff5c]?[>\]\u25b7}]"
)
_OPENINGS, _CLOSINGS = (
    [re.sub(r"^(?:<|\\\[|\\u25c1)", "", row[side]) for row in THOUGHTS] for side in (0, 1)
)
#: A mark that ends or opens thoughts, maybe at the beginning of a turn only; one for each bracket.
THOUGHT = [
    re.compile(
        rf"{bracket}(?=[/|\uff5ca-z])(?:(?P<closing>{_any(_CLOSINGS)})|(?P<end>{_END})"
        rf"|(?P<opening>{_any(_OPENINGS)})"
        rf"|(?P<named>[|\uff5c]?{_NAME}(?:[|\uff5c]?>|\]|\u25b7|\}})(?!\()))",
        re.IGNORECASE,
    )
    for bracket in ("<", r"\[", "\u25c1", r"\{")
]
#: A text without marks that begin with `<`.
TEXT = r"[^<]*+(?:<(?![/|\uff5c\w])[^<]*+)*+"
#: A text with thoughts, then calls or a response, and no other mark that begins with `<`; the two
#: groups are the marks of the thoughts. Most answers that call tools are one.
PLAIN = re.compile(rf"\s*(<think>){TEXT}(</think>){TEXT}(?:</?(?:tool_call|response)>{TEXT})*")
#: The same of every mark that does not begin with `<`.
OTHER_HINTS = _hints(
    *(rf"{bracket}(?=[/|\uff5c]|[^\W\d])" for bracket in (r"\[", r"\{", "\u25c1")),
    r"\]~b\]",
    "\nassistant\n",
)
#: The beginning of a turn, or the end of one. After a blank or before one, it is text about it.
TURN = re.compile(
    rf"(?<![ \t])(?:(?:{_any([row[0] for row in TURNS])})|({_ENDS})(?![ \t.,;:`*)\"'][^\n]))",
    re.IGNORECASE | re.MULTILINE,
)
BARE_OR_MARKED_TURN = re.compile(f"{TURN.pattern}|{BARE_TURN}", re.IGNORECASE | re.MULTILINE)
TOOL = re.compile(
    rf"(?P<opening>{_any([row[0] for row in TOOL_ANSWERS])})"
    rf"|(?P<closing>{_any([row[1] for row in TOOL_ANSWERS])})"
)
