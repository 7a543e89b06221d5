"""The original LIBERO reward server, with stand-ins for the libraries of its model.

    python rlinf_rlaif_server.py SERVER MODEL_URL FLAG...

SERVER is its libero_reward_server.py, which runs unchanged with the flags. The text that its model
would generate is what `POST MODEL_URL/chat/completions` answers to the prompt.
"""

import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx


class Llm:
    """In place of `vllm.LLM`."""

    model_url: str

    def __init__(self, **_: object) -> None:
        self._client = httpx.Client(base_url=self.model_url, timeout=60, trust_env=False)

    def generate(self, inputs: list[dict[str, Any]], _: object) -> list[Any]:
        (prompt,) = inputs
        body = {"messages": [{"role": "user", "content": prompt["prompt"]}]}
        answer = self._client.post("/chat/completions", json=body).json()
        text = answer["choices"][0]["message"]["content"]
        return [SimpleNamespace(outputs=[SimpleNamespace(text=text)])]


def pretrained(_: str) -> Any:
    def template(messages: list[Any], **__: object) -> str:
        return messages[-1]["content"][-1]["text"]

    return SimpleNamespace(apply_chat_template=template)


def standin(name: str, **contents: object) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


if __name__ == "__main__":
    auto = SimpleNamespace(from_pretrained=pretrained)
    standin("vllm", LLM=Llm, SamplingParams=SimpleNamespace)
    standin("transformers", AutoProcessor=auto, AutoTokenizer=auto)
    standin("qwen_vl_utils", process_vision_info=lambda *_, **__: (None, [None], {}))
    server, Llm.model_url, *flags = sys.argv[1:]
    sys.argv = [server, *flags]
    runpy.run_path(server, run_name="__main__")
