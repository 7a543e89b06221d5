"""Batches of prompts that are rewritten for their routes, and inference."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rewardfleet_router.batch import (
    PROMPT_FIELDS,
    choose_group_routes,
    encode_prompts,
    pad_prompts,
    routed_gen_batch,
    store_routes,
    stored_routes,
)
from rewardfleet_router.inference import route_prompt
from rewardfleet_router.routes import Route, RouteTexts, rewrite_prompt

SYSTEM = "You help.\n\n**Available Tools**\n1. Name: find\n2. Name: add\n\n**Steps**\nThink."
PROMPT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "find the city"}]
FAMILIES = {"find": "search", "add": "calculate"}


def text_of(batch, row, tokenizer):
    tokens = batch["input_ids"][row][batch["attention_mask"][row].bool()]
    return tokenizer.decode(tokens)


def test_prompts_are_padded_on_the_left(tokenizer):
    short = [{"role": "user", "content": "sum"}]
    batch = encode_prompts([PROMPT, short], tokenizer, 32)
    assert all(batch[name].shape == (2, 32) and batch[name].dtype == torch.int64 for name in batch)
    assert tuple(batch) == PROMPT_FIELDS
    expected = tokenizer.apply_chat_template(
        short, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert batch["input_ids"][1].tolist() == [tokenizer.pad_token_id] * (32 - 6) + expected
    assert batch["attention_mask"][1].tolist() == [0] * (32 - 6) + [1] * 6
    assert batch["position_ids"][1].tolist() == [0] * (32 - 6) + list(range(6))


def test_the_batch_of_rewritten_prompts_has_the_same_shape(tokenizer):
    before = encode_prompts([PROMPT] * 3, tokenizer, 96)
    after = routed_gen_batch([PROMPT] * 3, [0, 1, 2], tokenizer, 96, families=[FAMILIES] * 3)
    assert {name: tensor.shape for name, tensor in after.items()} == {
        name: tensor.shape for name, tensor in before.items()
    }
    answer, search, calculate = (text_of(after, row, tokenizer).split() for row in range(3))
    assert "find" in answer and answer.count("find") == 1  # of the user
    assert search.count("find") == 2 and "add" not in search
    assert calculate.count("find") == 1 and "add" in calculate


def test_too_long_prompts_are_an_error_or_cut():
    with pytest.raises(ValueError, match="prompt 1 has 3 tokens, more than 2: .*max_prompt_length"):
        pad_prompts([[1], [1, 2, 3]], 0, 2)
    assert pad_prompts([[1, 2, 3]], 0, 2, truncation="left")["input_ids"].tolist() == [[2, 3]]
    assert pad_prompts([[1, 2, 3]], 0, 2, truncation="right")["input_ids"].tolist() == [[1, 2]]
    assert pad_prompts([[1], [1, 2]], 0, None)["input_ids"].tolist() == [[0, 1], [1, 2]]
    with pytest.raises(ValueError, match="truncation: error, left or right"):
        pad_prompts([[1]], 0, 2, truncation="middle")


def test_each_copy_samples_its_own_route_unless_routes_are_limited():
    index = np.repeat(np.arange(200), 4)
    logits = torch.tensor([0.5, 0.3, 0.2]).log().repeat(800, 1)
    numbers = {}
    for limit in (None, 1, 2):
        generator = torch.Generator().manual_seed(0)
        output = choose_group_routes(logits, index, routes_per_prompt=limit, generator=generator)
        groups = output.action.view(200, 4).tolist()
        numbers[limit] = max(len(set(group)) for group in groups)
        torch.testing.assert_close(output.log_prob, logits[0, output.action])
        if limit == 2:
            assert all(group[:2] == group[2:] for group in groups)
    assert numbers == {None: 3, 1: 1, 2: 2}


def test_copies_need_not_be_next_to_each_other():
    index = np.array(["b", "a", "b", "a"] * 20, object)
    output = choose_group_routes(torch.zeros(80, 3), index, routes_per_prompt=1)
    assert len(set(output.action[::2].tolist())) == len(set(output.action[1::2].tolist())) == 1


@pytest.mark.parametrize(
    ("index", "limit", "message"),
    [([1, 1], 0, "routes_per_prompt: 1 or more"), ([1], None, "index: one entry per prompt")],
)
def test_malformed_groups_are_errors(index, limit, message):
    with pytest.raises(ValueError, match=message):
        choose_group_routes(torch.zeros(2, 3), index, routes_per_prompt=limit)


def test_an_unknown_action_is_an_error(tokenizer):
    with pytest.raises(ValueError, match=r"action: in \[0, 2\] \(got -1\)"):
        routed_gen_batch([PROMPT], [-1], tokenizer, 96)


def test_routes_are_stored_in_the_batch():
    data = SimpleNamespace(non_tensor_batch={}, meta_info={})
    output = choose_group_routes(torch.randn(4, 3, requires_grad=True), [0, 0, 1, 1])
    store_routes(data, output)
    shapes = {name: array.shape for name, array in data.non_tensor_batch.items()}
    assert shapes == {"router_logits": (4, 3), "router_action": (4,), "router_log_prob": (4,)}
    assert data.meta_info == {"router_routes": ["ANSWER", "SEARCH-FAMILY", "CALCULATE-FAMILY"]}
    for stored, tensor in zip(stored_routes(data), output, strict=True):
        torch.testing.assert_close(stored, tensor.detach())


def test_a_data_proto_of_verl_keeps_the_routes_when_it_is_split_and_repeated():
    protocol = pytest.importorskip("verl.protocol")
    data = protocol.DataProto.from_dict(tensors=pad_prompts([[1], [2, 3]], 0, 4))
    store_routes(data, choose_group_routes(torch.randn(2, 3), [0, 1]))
    actions = stored_routes(data).action.tolist()
    assert stored_routes(data.repeat(2, interleave=True)).action.tolist() == [
        action for action in actions for _ in range(2)
    ]
    assert [stored_routes(part).action.tolist() for part in data.chunk(2)] == [[a] for a in actions]


def test_inference_gives_a_route_and_the_prompt_for_it(actor, tokenizer):
    actor.head.linear.weight.data.zero_()
    actor.head.linear.bias.data.copy_(torch.tensor([0.0, 2.0, 1.0]))
    routed = route_prompt(PROMPT, actor, tokenizer, families=FAMILIES)
    assert routed.route is Route.SEARCH
    assert routed.messages == rewrite_prompt(PROMPT, Route.SEARCH, FAMILIES)
    assert list(routed.probabilities.values()) == pytest.approx([0.0900, 0.6652, 0.2447], abs=1e-4)
    generator = torch.Generator().manual_seed(0)
    sampled = {
        route_prompt(PROMPT, actor, tokenizer, sample=True, generator=generator).route
        for _ in range(50)
    }
    assert sampled == set(Route)


def test_a_template_may_have_arguments(actor, tokenizer):
    batch = encode_prompts([PROMPT], tokenizer, 64, template={"note": "city"})
    assert text_of(batch, 0, tokenizer).startswith("city system :")
    plain, noted = (
        route_prompt(PROMPT, actor, tokenizer, template=template).probabilities
        for template in (None, {"note": "city"})
    )
    assert plain != noted


def test_the_texts_may_be_others(actor, tokenizer):
    texts = RouteTexts("mine", {route: f"city {route}" for route in Route})
    batch = routed_gen_batch([PROMPT], [0], tokenizer, 64, texts=texts)
    assert text_of(batch, 0, tokenizer).split().count("city") == 2
    routed = route_prompt(PROMPT, actor, tokenizer, texts=texts)
    assert routed.messages[0]["content"].endswith(f"city {routed.route}")


def test_inference_routes_as_training_does(actor, tokenizer):
    """The padding of training does not change the route."""
    batch = encode_prompts([PROMPT], tokenizer, 64)
    chosen = actor.route(batch["input_ids"], batch["attention_mask"], sample=False)
    routed = route_prompt(PROMPT, actor, tokenizer)
    probabilities = torch.tensor(list(routed.probabilities.values()))
    torch.testing.assert_close(probabilities, torch.softmax(chosen.logits[0], -1).detach())
    with pytest.raises(ValueError, match="more than 8"):
        route_prompt(PROMPT, actor, tokenizer, max_prompt_length=8)
