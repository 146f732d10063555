"""Makes a real reasoning model of 0.4 million parameters that knows one dialogue by heart.

Run with the engine's Python (torch and transformers): about two seconds on the CPU. The weights are the same at
every run on one machine; the answer is the same everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

QUESTION = "What is the capital of France? Answer in one sentence."
THOUGHT = "The user asks for the capital of France. That is Paris."
ANSWER = "The capital of France is Paris."
TOKENS = 512
STEPS = 150
SEED = 20
GOOD_LOSS = 0.05

# The template opens the thought itself, as the reasoning models of the field do: the answer begins inside it.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>"
REPLY = f"{THOUGHT}</think>{ANSWER}<|im_end|>"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
)


def main() -> int:
    """Writes the model into the directory named on the command line, whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--shards", type=int, default=1, help="how many safetensors files (with an index when more than one)"
    )
    parser.add_argument(
        "--without-tokenizer",
        action="store_true",
        help="leave the tokenizer's files out: a checkpoint that loads and cannot talk",
    )
    arguments = parser.parse_args()
    target: Path = arguments.directory
    os.umask(0o022)
    os.environ["TQDM_DISABLE"] = "1"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as name:
        made = Path(name) / "model"
        loss = make(made, shards=arguments.shards, tokenizer=not arguments.without_tokenizer)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    print(
        f"{target}: {sum(file.stat().st_size for file in target.iterdir()):,} bytes, loss {loss:.4f}", file=sys.stderr
    )
    return 0


def make(directory: Path, *, shards: int = 1, tokenizer: bool = True) -> float:
    """Trains and saves; the loss at the end.

    Raises:
        SystemExit: The model did not learn its dialogue.
    """
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    words = _tokenizer()
    model = _model(words)
    loss = _train(model, words)
    if loss > GOOD_LOSS:
        raise SystemExit(f"the model did not learn its dialogue (loss {loss:.3f})")
    model = model.to(torch.bfloat16)
    model.save_pretrained(directory)
    words.save_pretrained(directory)
    if shards > 1:
        _split(directory, shards)
    if not tokenizer:
        for name in TOKENIZER_FILES:
            (directory / name).unlink(missing_ok=True)
    # safetensors writes files that only their owner can read; the service is another user.
    for file in directory.iterdir():
        file.chmod(0o644)
    return loss


def _tokenizer():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS - 4, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator([QUESTION, THOUGHT, ANSWER], trainer)
    # `</think>` is not special: a special token is left out when text is decoded, and the reasoning parser looks for it there.
    bpe.add_tokens([AddedToken("</think>", special=False, normalized=False)])
    bpe.add_special_tokens(
        [AddedToken(word, special=True, normalized=False) for word in ("<think>", "<|im_start|>", "<|im_end|>")]
    )
    words = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|im_end|>")
    words.chat_template = CHAT_TEMPLATE
    return words


def _model(words):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    end = words.convert_tokens_to_ids("<|im_end|>")
    config = Qwen2Config(
        vocab_size=TOKENS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    return Qwen2ForCausalLM(config)


def _train(model, words) -> float:
    import torch

    prompt = words(PROMPT, add_special_tokens=False)["input_ids"]
    reply = words(REPLY, add_special_tokens=False)["input_ids"]
    tokens = torch.tensor([prompt + reply])
    labels = tokens.clone()
    labels[:, : len(prompt)] = -100
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(STEPS):
        loss = model(input_ids=tokens, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    return float(loss.detach())


def _split(directory: Path, shards: int) -> None:
    """Several files with an index, as the big checkpoints have."""
    from safetensors.torch import load_file, save_file

    whole = directory / "model.safetensors"
    tensors = sorted(load_file(whole).items())
    if shards > len(tensors):
        raise SystemExit(f"{len(tensors)} tensors cannot fill {shards} files")
    index: dict[str, str] = {}
    for number in range(shards):
        part = dict(tensors[number::shards])
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, directory / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(part, name))
    size = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": index}, indent=2, sort_keys=True)
    (directory / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")
    whole.unlink()


if __name__ == "__main__":
    sys.exit(main())
