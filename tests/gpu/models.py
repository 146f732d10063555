"""Makes models with the shapes that matter, where they are needed: no download, seconds a gigabyte.

`models.py dense DIR --gib 8`: grouped-query attention (Qwen2). Two layers learn one dialogue by heart; more layers
that add nothing (their output projections are zero) bring it to size, so that it answers rightly at any size.
`models.py mla DIR --gib 8`: multi-head latent attention and routed experts (DeepSeek V3's shape) with random weights.
Both have a byte-level tokenizer as large as the vocabulary, so that every token can be shown.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from words import PROMPT, REPLY, tokenizer

CONTEXT = 1 << 20
SHARD = 1 << 30
GOOD_LOSS = 0.1


class Writer:
    """Shards with an index, each written when it is full."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.waiting, self.size = directory, {}, 0
        self.names: list[list[str]] = []
        self.total = 0

    def add(self, name: str, tensor: Any) -> None:
        self.waiting[name] = tensor.detach().to("cpu").contiguous()
        self.size += tensor.numel() * tensor.element_size()
        if self.size >= SHARD:
            self.flush()

    def flush(self) -> None:
        from safetensors.torch import save_file

        if self.waiting:
            save_file(self.waiting, self.directory / f"part-{len(self.names)}", metadata={"format": "pt"})
            self.names.append(list(self.waiting))
            self.total += self.size
            self.waiting, self.size = {}, 0

    def close(self) -> int:
        self.flush()
        count, index = len(self.names), {}
        for number, names in enumerate(self.names):
            file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            (self.directory / f"part-{number}").rename(self.directory / file)
            index.update(dict.fromkeys(names, file))
        text = json.dumps({"metadata": {"total_size": self.total}, "weight_map": index})
        (self.directory / "model.safetensors.index.json").write_text(text)
        return self.total


def config(directory: Path, **values: Any) -> None:
    """config.json with what both shapes share."""
    shared = {
        "torch_dtype": "bfloat16", "hidden_act": "silu", "initializer_range": 0.02, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False, "use_cache": True,
        "attention_dropout": 0.0, "bos_token_id": None,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({**shared, **values}, indent=1))
    end = values["eos_token_id"]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "pad_token_id": end}))


def dense(directory: Path, gib: float, args: argparse.Namespace, device: str) -> str:
    """Train the core, then append layers that change nothing."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    words = tokenizer(directory, args.vocabulary)
    end = words.convert_tokens_to_ids("<|im_end|>")
    shape = {
        "vocab_size": args.vocabulary, "hidden_size": args.hidden, "intermediate_size": args.hidden * 4,
        "num_attention_heads": args.hidden // args.head, "num_key_value_heads": max(args.hidden // args.head // 4, 2),
        "eos_token_id": end, "pad_token_id": end,
    }  # fmt: skip
    core = Qwen2Config(**shape, num_hidden_layers=2, max_position_embeddings=4096, tie_word_embeddings=False)
    torch.manual_seed(20)
    model = Qwen2ForCausalLM(core).to(device=device, dtype=torch.float32)
    loss = train(model, words, device, 3e-3 if args.hidden <= 256 else 1e-3 if args.hidden <= 1024 else 4e-4)
    state = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    layer = {name: value for name, value in state.items() if name.startswith("model.layers.1.")}
    size = sum(value.numel() for value in layer.values()) * 2
    whole = sum(value.numel() for value in state.values()) * 2
    layers = 2 + max(0, round((gib * 2**30 - whole) / size))
    writer = Writer(directory)
    for name, value in state.items():
        writer.add(name, value)
    for number in range(2, layers):
        for name, value in layer.items():
            silent = "o_proj.weight" in name or "down_proj.weight" in name
            fresh = torch.zeros_like(value) if silent else value
            writer.add(name.replace("layers.1.", f"layers.{number}."), fresh.clone())
    config(
        directory, architectures=["Qwen2ForCausalLM"], model_type="qwen2", num_hidden_layers=layers,
        use_sliding_window=False, sliding_window=None, max_window_layers=layers, **shape,
    )  # fmt: skip
    return f"{writer.close() / 2**30:.2f} GiB, {layers} layers, loss {loss:.4f}"


def train(model: Any, words: Any, device: str, rate: float) -> float:
    """Learn one dialogue by heart; the loss at the end."""
    import torch

    prompt = words(PROMPT, add_special_tokens=False)["input_ids"]
    reply = words(REPLY, add_special_tokens=False)["input_ids"]
    tokens = torch.tensor([prompt + reply], device=device)
    labels = tokens.clone()
    labels[:, : len(prompt)] = -100
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    value = float("inf")
    for step in range(400):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20)
        loss = model(input_ids=tokens, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 10 == 9:
            value = float(loss.detach())
            if value < 0.005:
                break
    if value > GOOD_LOSS:
        print(f"models: the dialogue was not learned (loss {value:.3f}); the model talks nonsense", file=sys.stderr)
    return value


def mla(directory: Path, gib: float, args: argparse.Namespace, device: str) -> str:
    """Random weights, one dense layer, then layers of experts; the number of experts gives the size."""
    import torch

    words = tokenizer(directory, args.vocabulary)
    end = words.convert_tokens_to_ids("<|im_end|>")
    hidden, heads, rank_q, rank_kv, nope, rope, value = (
        args.mla_hidden,
        args.mla_heads,
        args.mla_hidden // 4,
        512,
        128,
        64,
        128,
    )
    inter, moe, layers = hidden * 2, args.mla_hidden // 4, args.layers
    attention = hidden * (rank_q + rank_kv + rope) + rank_q * heads * (nope + rope) + rank_kv * heads * (nope + value)
    attention += heads * value * hidden
    fixed = 2 * args.vocabulary * hidden + layers * attention + 3 * hidden * inter
    fixed += (layers - 1) * 3 * hidden * moe
    spare = gib * 2**30 / 2 - fixed
    experts = max(8, int(spare / ((layers - 1) * 3 * hidden * moe)) // 8 * 8)
    writer = Writer(directory)
    generator = torch.Generator(device=device).manual_seed(20)

    def put(name: str, *shape: int) -> None:
        if len(shape) == 1:
            writer.add(name, torch.ones(shape, dtype=torch.bfloat16, device=device))
        else:
            made = torch.empty(shape, dtype=torch.bfloat16, device=device)
            writer.add(name, made.normal_(0, 0.02, generator=generator))

    def block(name: str, width: int) -> None:
        put(f"{name}.gate_proj.weight", width, hidden)
        put(f"{name}.up_proj.weight", width, hidden)
        put(f"{name}.down_proj.weight", hidden, width)

    put("model.embed_tokens.weight", args.vocabulary, hidden)
    for number in range(layers):
        at = f"model.layers.{number}"
        put(f"{at}.input_layernorm.weight", hidden)
        put(f"{at}.post_attention_layernorm.weight", hidden)
        put(f"{at}.self_attn.q_a_proj.weight", rank_q, hidden)
        put(f"{at}.self_attn.q_a_layernorm.weight", rank_q)
        put(f"{at}.self_attn.q_b_proj.weight", heads * (nope + rope), rank_q)
        put(f"{at}.self_attn.kv_a_proj_with_mqa.weight", rank_kv + rope, hidden)
        put(f"{at}.self_attn.kv_a_layernorm.weight", rank_kv)
        put(f"{at}.self_attn.kv_b_proj.weight", heads * (nope + value), rank_kv)
        put(f"{at}.self_attn.o_proj.weight", hidden, heads * value)
        if number == 0:
            block(f"{at}.mlp", inter)
            continue
        put(f"{at}.mlp.gate.weight", experts, hidden)
        writer.add(f"{at}.mlp.gate.e_score_correction_bias", torch.zeros(experts))
        block(f"{at}.mlp.shared_experts", moe)
        for expert in range(experts):
            block(f"{at}.mlp.experts.{expert}", moe)
    put("model.norm.weight", hidden)
    put("lm_head.weight", args.vocabulary, hidden)
    config(
        directory, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=args.vocabulary,
        hidden_size=hidden, intermediate_size=inter, moe_intermediate_size=moe, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, n_shared_experts=1, n_routed_experts=experts,
        num_experts_per_tok=8, first_k_dense_replace=1, moe_layer_freq=1, n_group=1, topk_group=1,
        topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5,
        q_lora_rank=rank_q, kv_lora_rank=rank_kv, qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value,
        attention_bias=False, rope_scaling=None, ep_size=1, eos_token_id=end, pad_token_id=end,
        num_nextn_predict_layers=0,
    )  # fmt: skip
    return f"{writer.close() / 2**30:.2f} GiB, {layers} layers, {experts} experts"


def main() -> int:
    """Make one model; whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("dense", "mla"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gib", type=float, default=1.0, help="size wished for")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=2048, help="dense: hidden size")
    parser.add_argument("--head", type=int, default=128, help="dense: size of a head")
    parser.add_argument("--mla-hidden", type=int, default=4096, help="mla: hidden size")
    parser.add_argument("--mla-heads", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3, help="mla: layers, the first one dense")
    parser.add_argument("--device", default="")
    args = parser.parse_args()
    import torch

    began = time.monotonic()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    draft = args.directory.with_name(f".{args.directory.name}")
    draft.mkdir(parents=True, exist_ok=True)
    text = (dense if args.kind == "dense" else mla)(draft, args.gib, args, device)
    for file in draft.iterdir():
        file.chmod(0o644)
    draft.chmod(0o755)
    draft.rename(args.directory)
    print(f"{args.directory}: {text}, made in {time.monotonic() - began:.1f} s on {device}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
