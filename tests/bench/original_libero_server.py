"""The way of the original LIBERO reward server, rebuilt from its document.

    python original_libero_server.py MODEL PORT

FastAPI calls process_vision_info and a blocking `LLM.generate` in the handler: one request at a
time. vLLM and qwen-vl-utils get the arguments that they need today: the videos' metadata, and
`limit_mm_per_prompt`. What the engine did not compute because it was cached is in the answers.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field
from qwen_vl_utils import process_vision_info
from transformers import AutoProcessor
from vllm import LLM, SamplingParams

from rewardfleet_server.video.prompts import PERCENTAGE


class ScoreRequest(BaseModel):
    task_text: str = Field(min_length=1)
    video_path: str = Field(min_length=1)
    nframes: int = Field(16, ge=1, le=128)
    max_pixels: int = Field(200_704, ge=784, le=1_605_632)


class Backend:
    """The model, with the original's defaults but for the lengths of the benchmark."""

    def __init__(self, model: str) -> None:
        self._llm = LLM(
            model,
            max_model_len=4096,
            limit_mm_per_prompt={"image": 1, "video": 1},
            enforce_eager=True,
        )
        self._sampling = SamplingParams(temperature=0.0, top_p=0.001, max_tokens=64)
        self._processor = AutoProcessor.from_pretrained(model)

    def score(self, request: ScoreRequest) -> dict[str, Any]:
        video = {"type": "video", "video": request.video_path, "nframes": request.nframes}
        text = {"type": "text", "text": PERCENTAGE.render(request.task_text)}
        content = [video | {"max_pixels": request.max_pixels}, text]
        messages = [{"role": "user", "content": content}]
        prompt = self._processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        _, videos, arguments = process_vision_info(
            messages, return_video_kwargs=True, return_video_metadata=True
        )
        inputs = {
            "prompt": prompt,
            "multi_modal_data": {"video": videos},
            "mm_processor_kwargs": arguments,
        }
        [output] = self._llm.generate([inputs], self._sampling, use_tqdm=False)
        return {"model_output": output.outputs[0].text, "cached_tokens": output.num_cached_tokens}


def main(model: str, port: str) -> None:
    backend = Backend(model)
    app = FastAPI()

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/score")
    async def score(request: ScoreRequest) -> dict[str, Any]:
        return backend.score(request)

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
