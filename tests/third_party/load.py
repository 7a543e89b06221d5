"""Send right programs by another project's client, all at once.

Each function returns how often the client took each reward, as its trainer would train on it, or
failed in each way. Program i prints i; no two are equal.
"""

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

from .trainers import bare, in_process


def program(number: int) -> str:
    return f"print({number})  # {time.time_ns()}"


def tests(number: int) -> dict[str, list[str]]:
    return {"inputs": [""], "outputs": [str(number)]}


@in_process
def verl(url: str, number: int) -> Counter[str]:
    """`compute_score` of verl's reward for `sandbox_fusion.url`, in as many threads."""
    from verl.utils.reward_score.sandbox_fusion import compute_score

    logging.disable(logging.CRITICAL)
    found: Counter[str] = Counter()
    permits = threading.Semaphore(number)  # verl's own limit would be 512

    def score(each: int) -> None:
        completion = f"```python\n{program(each)}\n```"
        reward, _ = compute_score(url, permits, 1024, completion, tests(each))
        found[str(float(reward))] += 1

    threading.stack_size(256 * 1024)
    with ThreadPoolExecutor(number) as threads:
        list(threads.map(score, range(number)))
    return found


@in_process
def openrlhf(url: str, number: int) -> Counter[str]:
    """The single-turn executor's own request; a failure leaves the sample without a reward."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor = object.__new__(SingleTurnAgentExecutor)  # without an engine
    executor.reward_func = None
    executor.reward_endpoints = url.split(",")
    executor._reward_endpoint_cycle = cycle(executor.reward_endpoints)

    async def reward(each: int) -> object:
        prompt = f"<|im_start|>user\nPrint {each}.<|im_end|>\n"
        query = f"{prompt}{program(each)}<|im_end|>"
        labels = [json.dumps(tests(each))]
        (answer,) = await executor._fetch_rewards_via_http([query], [prompt], labels)
        return answer["rewards"][0]

    return asyncio.run(gathered(reward, number))


@in_process
def nemo_gym(url: str, number: int) -> Counter[str]:
    """The requests of Gym's `SimpleAgent.run`, except to the model, by Gym's own client."""
    from nemo_gym import server_utils as gym

    async def reward(each: int) -> object:
        row = {"responses_create_params": {"input": f"Print {each}."}}
        row["verifier_metadata"] = tests(each)
        seeded = await gym.request("POST", f"{url}/seed_session", _internal=True, json=row)
        await gym.raise_for_status(seeded)
        text = {"type": "output_text", "text": program(each), "annotations": []}
        message = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
        body = row | {"response": {"id": "r", "output": [message | {"content": [text]}]}}
        verified = await gym.request("POST", f"{url}/verify", _internal=True, json=body)
        await gym.raise_for_status(verified)
        answer = await gym.get_response_json(verified)
        return "masked" if answer["mask_sample"] else answer["reward"]

    async def run() -> Counter[str]:
        async with gym.set_global_aiohttp_client(gym.GlobalAIOHTTPAsyncClientConfig()):
            return await gathered(reward, number)

    return asyncio.run(run())


@in_process
def openenv(url: str, number: int) -> Counter[str]:
    """An episode each, by the generic client; of the package, only the client is imported."""
    bare("openenv.core")
    from openenv.core.generic_client import GenericEnvClient

    async def reward(each: int) -> object:
        async with GenericEnvClient(base_url=url) as env:
            start = await env.reset()
            assert (start.reward, start.done) == (None, False)
            end = await env.step({"code": program(each), **tests(each)})
            assert end.done
            return end.reward

    return asyncio.run(gathered(reward, number))


async def gathered(reward: Callable[[int], Awaitable[object]], number: int) -> Counter[str]:
    found: Counter[str] = Counter()

    async def count(each: int) -> None:
        try:
            found[str(await reward(each))] += 1
        except Exception as error:
            found[type(error).__name__] += 1

    await asyncio.gather(*(count(each) for each in range(number)))
    return found
