"""Make a tiny random checkpoint of the Qwen-VL family that vLLM and transformers can load.

    python tiny_checkpoint.py FOLDER [qwen2_5_vl | qwen3_vl]

Nothing is downloaded: the tokenizer is trained on a few lines, the weights are random with a fixed
seed. 0.7 million parameters, a few seconds.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

_DATA = Path(__file__).parents[1] / "data" / "engines"
_TEMPLATE = (_DATA / "chat_template.jinja").read_text()
#: Special tokens, what the tokenizer is trained on, and how a text is divided into words.
_TOKENIZER = json.loads((_DATA / "tokenizer.json").read_text())
_SPECIAL = _TOKENIZER["special"]
#: The configurations of the tiny models, without what depends on the tokenizer.
_CONFIGS = _DATA / "tiny_configs.json"
#: Minimum and maximum pixels of a frame in the processors of the published checkpoints.
_PIXELS = {"shortest_edge": 3136, "longest_edge": 12_845_056}


def make_checkpoint(folder: Path, kind: str = "qwen2_5_vl", *, context: int = 32768) -> Path:
    """Write a checkpoint; return its folder."""
    hf.set_seed(0)
    tokenizer = _tokenizer(context)
    return _save(folder, *_MAKERS[kind](tokenizer, context), tokenizer)


def _save(folder: Path, model: Any, processor: Any, tokenizer: Any) -> Path:
    model.generation_config = hf.GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    # bfloat16, like the published checkpoints.
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    # Older loaders read the image settings only from this file.
    settings = folder / "preprocessor_config.json"
    if not settings.exists():
        own = processor.image_processor.to_dict()
        content = {**own, "processor_class": type(processor).__name__}
        settings.write_text(json.dumps(content, default=str))
    return folder


def make_thinker(folder: Path) -> Path:
    """Write a Qwen2.5-VL that answers `<think>no</think>"Yes`, or `"No` with 0.2."""
    hf.set_seed(0)
    tokenizer = _tokenizer(32768)
    tokenizer.add_tokens(["<think>", "</think>"])
    model, processor = _qwen2_5(tokenizer, 32768)
    for layer in model.model.language_model.layers:  # then a token follows from that before it
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    embedded = torch.nn.functional.rms_norm(model.get_input_embeddings().weight.data, (128,))
    model.lm_head.weight.data.zero_()
    chain = ["\n", "<think>", "no", "</think>", '"', "Yes", tokenizer.eos_token]
    ids = tokenizer.convert_tokens_to_ids(
        [tokenizer.tokenize(each)[0] for each in [*chain, '"', "No"]]
    )
    for index in [*range(6), 7]:
        logit = 20 - math.log(4) * (index == 7)
        model.lm_head.weight.data[ids[index + 1]] += embedded[ids[index]] * logit / 128
    return _save(folder, model, processor, tokenizer)


def make_robometer(folder: Path, *, bins: int = 10, context: int = 32768) -> Path:
    """Write a Robometer in the published layout, in float32; return its folder.

    Its processor is that of its base model, which is written to the folder beside it.
    """
    hf.set_seed(0)
    tokenizer = _tokenizer(context)
    base, processor = _qwen3(tokenizer, context)
    base_folder = folder.parent / f"{folder.name}-base"
    processor.save_pretrained(base_folder)
    base.model.resize_token_embeddings(len(tokenizer) + 5)
    heads = {"progress_head": bins, "success_head": 1, "preference_head": 1, "similarity_head": 1}
    hidden = base.config.text_config.hidden_size
    weights = {f"model.{name}": weight for name, weight in base.model.state_dict().items()}
    for name, outputs in heads.items():
        for key, weight in _head(hidden, outputs).state_dict().items():
            weights[f"{name}.{key}"] = weight
    weights["frame_pool_attn.weight"] = torch.randn(1, hidden)
    folder.mkdir()
    base.config.save_pretrained(folder)
    _save_in_two_files(folder, weights)
    (folder / "config.yaml").write_text(
        f"model:\n  base_model_id: {base_folder}\n  use_multi_image: true\n"
        "  use_per_frame_progress_token: true\nloss:\n  progress_loss_type: discrete\n"
        f"  progress_discrete_bins: {bins}\n"
    )
    return folder


def _head(hidden: int, outputs: int) -> torch.nn.Module:
    """A head whose outputs differ visibly from frame to frame."""
    last = torch.nn.Linear(hidden // 2, outputs)
    torch.nn.init.normal_(last.weight)
    first = torch.nn.Linear(hidden, hidden // 2)
    norm = torch.nn.LayerNorm(hidden // 2)
    return torch.nn.Sequential(first, norm, torch.nn.GELU(), torch.nn.Dropout(0.1), last)


def _save_in_two_files(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    names = sorted(weights)
    files = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    for file, own in files.items():
        content = {name: weights[name].contiguous() for name in own}
        save_file(content, folder / file, {"format": "pt"})
    weight_map = {name: file for file, own in files.items() for name in own}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _tokenizer(context: int) -> Any:
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_TOKENIZER["words"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _TOKENIZER["corpus"] * 8,
        BpeTrainer(
            vocab_size=1024 - len(_SPECIAL),
            min_frequency=1,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in _SPECIAL]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def _ids(tokenizer: Any) -> dict[str, int]:
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {key: tokenizer.convert_tokens_to_ids(name) for key, name in names.items()}


def _config(kind: str, tokenizer: Any, context: int) -> dict[str, Any]:
    """Return the configuration of a tiny model with the tokens of a tokenizer."""
    config: dict[str, Any] = json.loads(_CONFIGS.read_text())[kind]
    config["text_config"] |= {
        "vocab_size": (len(tokenizer) + 63) // 64 * 64,
        "max_position_embeddings": context,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return {**config, "tie_word_embeddings": False, **_ids(tokenizer)}


def _qwen2_5(tokenizer: Any, context: int) -> tuple[Any, Any]:
    config = hf.Qwen2_5_VLConfig(**_config("qwen2_5_vl", tokenizer, context))
    processor = hf.Qwen2_5_VLProcessor(
        image_processor=hf.Qwen2VLImageProcessor(size=_PIXELS),
        video_processor=hf.Qwen2VLVideoProcessor(size=_PIXELS),
        tokenizer=tokenizer,
        chat_template=_TEMPLATE,
    )
    return hf.Qwen2_5_VLForConditionalGeneration(config), processor


def _qwen3(tokenizer: Any, context: int) -> tuple[Any, Any]:
    config = hf.Qwen3VLConfig(**_config("qwen3_vl", tokenizer, context))
    half = [0.5] * 3
    processor = hf.Qwen3VLProcessor(
        image_processor=hf.Qwen2VLImageProcessor(
            patch_size=16, size=_PIXELS, image_mean=half, image_std=half
        ),
        video_processor=hf.Qwen3VLVideoProcessor(size=_PIXELS),
        tokenizer=tokenizer,
        chat_template=_TEMPLATE,
    )
    return hf.Qwen3VLForConditionalGeneration(config), processor


_MAKERS = {"qwen2_5_vl": _qwen2_5, "qwen3_vl": _qwen3}


if __name__ == "__main__":
    make_checkpoint(Path(sys.argv[1]), *sys.argv[2:3])
