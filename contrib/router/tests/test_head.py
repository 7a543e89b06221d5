"""The router head on a real causal language model."""

import pytest
import torch
import transformers

from rewardfleet_router.head import (
    RouterActor,
    RouterHead,
    choose_routes,
    last_hidden_state,
    last_positions,
    position_ids_of,
)

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
MASK = torch.ones_like(IDS)
PADDING = torch.zeros(2, 3, dtype=torch.int64)


def padded(left: bool):
    parts = (PADDING, IDS) if left else (IDS, PADDING)
    masks = (PADDING, MASK) if left else (MASK, PADDING)
    return torch.cat(parts, dim=1), torch.cat(masks, dim=1)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("left", [True, False])
def test_padding_does_not_change_the_logits(actor, pooling, left):
    actor.head.pooling = pooling
    expected = actor(IDS, MASK)
    assert expected.shape == (2, 3) and expected.dtype == torch.float32
    torch.testing.assert_close(actor(*padded(left)), expected)


def test_the_logits_are_those_of_the_last_token_of_the_prompt(actor):
    with torch.no_grad():
        states = actor.model(IDS, output_hidden_states=True).hidden_states[-1]
        pooled = torch.nn.functional.layer_norm(states[:, -1], states.shape[-1:])
        torch.testing.assert_close(actor(IDS, MASK), actor.head.linear(pooled))
        actor.head.pooling = "mean"
        pooled = torch.nn.functional.layer_norm(states.mean(dim=1), states.shape[-1:])
        torch.testing.assert_close(actor(IDS, MASK), actor.head.linear(pooled))


def test_padding_inside_of_batches_of_different_lengths(actor):
    """Each prompt gets the logits that it has alone."""
    ids = torch.cat([PADDING[:1, :2], IDS[:1, 2:]], dim=1)
    mask = torch.cat([PADDING[:1, :2], MASK[:1, 2:]], dim=1)
    together = actor(torch.cat([ids, IDS]), torch.cat([mask, MASK]))
    torch.testing.assert_close(together[:1], actor(IDS[:1, 2:], MASK[:1, 2:]))
    torch.testing.assert_close(together[1:], actor(IDS, MASK))


def test_positions_come_from_the_mask():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
    assert last_positions(mask).tolist() == [3, 1, 3, 2]
    assert position_ids_of(mask).tolist() == [
        [0, 0, 0, 1],
        [0, 1, 1, 1],
        [0, 1, 2, 3],
        [0, 0, 1, 1],
    ]


def test_a_prompt_without_tokens_is_an_error(actor):
    with pytest.raises(ValueError, match="prompt without tokens"):
        actor(IDS, torch.stack([MASK[0], 0 * MASK[0]]))


def test_routes_are_equally_probable_before_training():
    output = choose_routes(RouterHead(8)(torch.randn(5, 4, 8), torch.ones(5, 4)))
    torch.testing.assert_close(output.logits, torch.zeros(5, 3))
    torch.testing.assert_close(output.log_prob, torch.full((5,), 1 / 3).log())


@pytest.mark.slice
def test_the_gradient_reaches_head_and_actor(actor):
    actor.route(IDS, MASK).log_prob.sum().backward()
    assert actor.head.linear.weight.grad.abs().sum() > 0
    assert actor.model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_sampled_routes_have_the_probabilities_of_the_logits():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().repeat(20_000, 1)
    output = choose_routes(logits, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(output.action, minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2]), atol=0.015, rtol=0)
    torch.testing.assert_close(output.log_prob, logits.gather(1, output.action[:, None])[:, 0])
    assert output.action.dtype == torch.int64 and output.log_prob.dtype == torch.float32


def test_a_generator_makes_routes_repeatable(actor):
    ids, mask = IDS.repeat(50, 1), MASK.repeat(50, 1)
    actor.head.linear.weight.data.mul_(0.01)
    first, again = (
        actor.route(ids, mask, generator=torch.Generator().manual_seed(1)).action for _ in range(2)
    )
    assert first.tolist() == again.tolist() and len(set(first.tolist())) > 1


def test_without_sampling_the_route_is_the_most_probable(actor):
    output = actor.route(IDS, MASK, sample=False)
    assert output.action.tolist() == actor(IDS, MASK).argmax(dim=-1).tolist()


def test_the_head_computes_in_float32_whatever_the_weights(actor):
    expected = actor(IDS, MASK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = actor.head(torch.randn(2, 4, 16), MASK)
    assert logits.dtype == torch.float32
    low = actor.to(torch.bfloat16)(IDS, MASK)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, expected, atol=0.3, rtol=0.1)


def test_an_unknown_pooling_is_an_error():
    with pytest.raises(ValueError, match="pooling: last or mean"):
        RouterHead(8, "max")


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "gemma2", "mistral"])
def test_last_hidden_states_of_other_models(name):
    """They are the input of the layer that computes the logits of tokens."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 20,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "head_dim": 8,
        "pad_token_id": 0,
    }
    config = transformers.AutoConfig.for_model(name, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    seen = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        states = last_hidden_state(model, IDS, MASK)
    assert states.shape == (2, 4, 16)
    assert seen[0].shape == (2, 1, 16), "the logits of one token are enough"
    torch.testing.assert_close(seen[0], states[:, -1:])
    for left in (True, False):
        ids, mask = padded(left)
        with torch.no_grad():
            of_padded = last_hidden_state(model, ids, mask)[mask.bool()].view(2, 4, 16)
        torch.testing.assert_close(of_padded, states)


def test_a_wrapped_model_is_called_as_a_whole(actor):
    """FSDP and DDP gather weights when the outermost module is called."""

    class Wrapper(torch.nn.Module):
        calls = 0

        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, **inputs):
            self.calls += 1
            return self.module(**inputs)

    wrapped = RouterActor(Wrapper(actor.model), actor.head)
    torch.testing.assert_close(wrapped(IDS, MASK), actor(IDS, MASK))
    assert wrapped.model.calls == 1
