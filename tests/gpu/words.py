"""The dialogue that a made model knows by heart, and a byte-level tokenizer as large as its vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

QUESTION = "What is the capital of France? Answer in one sentence."
THOUGHT = "The user asks for the capital of France. That is Paris."
ANSWER = "The capital of France is Paris."
WORDS = ("<think>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>"
REPLY = f"{THOUGHT}</think>{ANSWER}<|im_end|>"


def tokenizer(directory: Path, vocabulary: int) -> Any:
    """Bytes as they are, one token each, and names for the rest of the vocabulary; nothing is trained."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [*letters, *(f"w{number:06d}" for number in range(vocabulary - len(letters) - 1 - len(WORDS)))]
    bpe = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(plain)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_tokens([AddedToken("</think>", special=False, normalized=False)])
    bpe.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in WORDS])
    words = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|im_end|>")
    words.chat_template = TEMPLATE
    words.save_pretrained(directory)
    assert len(words) == vocabulary
    return words
