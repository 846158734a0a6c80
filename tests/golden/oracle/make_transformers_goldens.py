#!/usr/bin/env python3
"""Runs the tiny variants in Hugging Face transformers, in float32, on the prompts of the oracle's goldens.

    make_transformers_goldens.py --out DIR [--device cpu|cuda] [variant ...]

Writes DIR/<variant>.transformers.safetensors with the tensors of the oracle's golden, margins left out, and prints how
far the two are apart; exit status 1 if a variant failed, if any expert differs, or if logits differ by more than 1e-4 of the largest.
transformers has no Sarvam, but two models that compute the same thing under other names:
  sarvam_mla  as DeepseekV3 (interleaved RoPE, YaRN, direct q_proj)
  sarvam_moe  as Glm4Moe    (QK-norm, full half-split RoPE, sigmoid router with bias; the fused QKV is cut in three)
Needs torch >= 2.4 and transformers >= 5 (4.5x should do); no network, no files but those beside this script.
"""
import argparse
import os
import sys
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("USE_HUB_KERNELS", "0")

import numpy as np
import torch
import transformers

from golden_file import read_golden, write_golden
from make_oracle_goldens import HERE, OVERRIDES, load_config
from oracle import DEFAULT_MLA_ROPE_SCALING
from tiny_weights import head_dim, make_weights

TOLERANCE = 1e-4
MODEL_CLASSES = {"sarvam_mla": "DeepseekV3", "sarvam_moe": "Glm4Moe", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe",
                 "llama": "Llama"}
COMMON_KEYS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
               "hidden_act", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
GQA_KEYS = ("num_key_value_heads", "attention_bias")
QWEN3_MOE_KEYS = ("moe_intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob",
                  "decoder_sparse_step", "mlp_only_layers")
SARVAM_KEYS = ("moe_intermediate_size", "num_experts_per_tok", "routed_scaling_factor", "first_k_dense_replace")
MLA_KEYS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def rope_parameters(config):
    """The rope_parameters block of transformers 5."""
    block = config.get("rope_scaling") or (DEFAULT_MLA_ROPE_SCALING if config["model_type"] == "sarvam_mla" else {})
    result = {key: float(value) if key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim") else value
              for key, value in block.items() if key not in ("type", "rope_type")}
    kind = block.get("rope_type", block.get("type", "default"))
    result["rope_type"] = "yarn" if kind == "deepseek_yarn" else kind
    result["rope_theta"] = float(config["rope_theta"])
    return result


def config_arguments(variant, config):
    family = config["model_type"]
    keys = COMMON_KEYS
    arguments = {}
    if family in ("sarvam_mla", "sarvam_moe"):
        keys += SARVAM_KEYS
        n_group, topk_group = OVERRIDES.get(variant, (config.get("n_group", 1), config.get("topk_group", 1)))
        arguments.update(n_routed_experts=config["num_experts"], n_shared_experts=config["num_shared_experts"],
                         n_group=n_group, topk_group=topk_group, norm_topk_prob=config.get("norm_topk_prob", True),
                         attention_bias=False, num_nextn_predict_layers=0)
    if family == "sarvam_mla":
        keys += MLA_KEYS
        arguments.update(num_key_value_heads=config["num_attention_heads"], q_lora_rank=None, rope_interleave=True)
    elif family == "sarvam_moe":
        arguments.update(num_key_value_heads=config["num_key_value_heads"], head_dim=head_dim(config),
                         use_qk_norm=True, partial_rotary_factor=config.get("partial_rotary_factor", 1.0))
    else:
        keys += GQA_KEYS
        arguments["head_dim"] = head_dim(config)
    if family == "qwen3_moe":
        keys += QWEN3_MOE_KEYS
    arguments.update({key: config[key] for key in keys if key in config})
    return arguments


def make_config(variant, config):
    config_class = getattr(transformers, MODEL_CLASSES[config["model_type"]] + "Config")
    arguments, rope = config_arguments(variant, config), rope_parameters(config)
    if int(transformers.__version__.split(".")[0]) >= 5:
        arguments["rope_parameters"] = rope
    else:
        arguments["rope_theta"] = rope.pop("rope_theta")
        arguments["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    result = config_class(**arguments)
    # Plain PyTorch throughout: no fused attention, no grouped matrix product.
    result._attn_implementation = "eager"
    result._experts_implementation = "eager"
    return result


def renamed(config, weights):
    """Yields (transformers name, array); per-expert names stay, fill_model stacks them."""
    if config["model_type"] != "sarvam_moe":
        yield from weights.items()
        return
    dim, num_heads, num_kv_heads = head_dim(config), config["num_attention_heads"], config["num_key_value_heads"]
    for name, array in weights.items():
        name = name.replace("word_embeddings", "embed_tokens").replace("expert_bias", "e_score_correction_bias")
        name = name.replace(".attention.", ".self_attn.").replace("self_attn.dense", "self_attn.o_proj")
        name = name.replace("query_layernorm", "q_norm").replace("key_layernorm", "k_norm")
        if "query_key_value" not in name:
            yield name, array
            continue
        cuts = (num_heads * dim, (num_heads + num_kv_heads) * dim)
        for part, rows in zip("qkv", np.split(array, cuts)):
            yield name.replace("query_key_value", part + "_proj"), rows


def stacked_slice(targets, name, shape):
    """(target name, view to fill) of one expert's matrix in a model that stacks them; None if it has no such tensor."""
    prefix, _, rest = name.partition(".experts.")
    expert, _, matrix = rest.partition(".")
    matrix = matrix.replace(".weight", "")
    for target in (f"{prefix}.experts.{matrix}", f"{prefix}.experts.gate_up_proj"):
        if target not in targets or (target.endswith("gate_up_proj") and matrix == "down_proj"):
            continue
        view = targets[target][int(expert)]
        if target.endswith("gate_up_proj"):
            axis = 0 if view.shape[0] == 2 * shape[0] else 1
            view = view.narrow(axis, 0 if matrix == "gate_proj" else shape[0], shape[0])
        return target, view if tuple(view.shape) == tuple(shape) else view.T
    return None


@torch.no_grad()
def fill_model(model, config, weights):
    """Copies every tensor; asserts that every parameter is filled exactly once and every tensor has a place."""
    if config.get("tie_word_embeddings"):
        model.lm_head.weight = model.model.embed_tokens.weight
    targets = dict(model.named_parameters())  # names a shared parameter once
    targets.update({n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")})
    filled = {name: 0 for name in targets}
    for name, array in renamed(config, weights):
        value = torch.from_numpy(np.ascontiguousarray(array))
        place = (name, targets[name]) if name in targets else stacked_slice(targets, name, array.shape)
        assert place is not None, f"{name} has no place in the model"
        target, view = place
        assert tuple(view.shape) == tuple(value.shape), (name, target, tuple(view.shape), tuple(value.shape))
        assert view.dtype == torch.float32, (target, view.dtype)
        view.copy_(value)
        filled[target] += value.numel()
    wrong = {n: (count, targets[n].numel()) for n, count in filled.items() if count != targets[n].numel()}
    assert not wrong, f"not filled exactly once: {wrong}"


def chosen_experts(gate_output, k):
    """int64 (n, k) ascending from what a router module returns: (logits, weights, ids), (ids, weights) or logits."""
    outputs = gate_output if isinstance(gate_output, (tuple, list)) else (gate_output,)
    for value in outputs:
        if torch.is_tensor(value) and not value.is_floating_point():
            return value.reshape(-1, k).sort(dim=-1).values.cpu()
    logits = outputs[0]
    return logits.reshape(-1, logits.shape[-1]).topk(k, dim=-1).indices.sort(dim=-1).values.cpu()


@torch.no_grad()
def run_model(model, config, tokens, device):
    """(logits (n, vocab), experts (num_moe_layers, n, k) or None)"""
    experts, hooks = [], []
    for name, module in model.named_modules():
        if name.endswith(".mlp.gate"):
            hooks.append(module.register_forward_hook(
                lambda _, __, output: experts.append(chosen_experts(output, config["num_experts_per_tok"]))))
    try:
        out = model(input_ids=torch.tensor([tokens], device=device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return out.logits[0].float().cpu().numpy(), torch.stack(experts).numpy() if experts else None


def compare(variant, device, out_dir):
    """Writes one golden and prints one line; returns whether it agrees with the oracle."""
    begin = time.time()
    config = load_config(variant)
    golden, metadata = read_golden(os.path.join(HERE, "goldens", variant + ".safetensors"))
    model_class = getattr(transformers, MODEL_CLASSES[config["model_type"]] + "ForCausalLM")
    model = model_class(make_config(variant, config)).float().eval()
    fill_model(model, config, make_weights(config, int(metadata["seed"])))
    model.to(device)
    tensors, worst, differing = {}, 0.0, 0
    for suffix in ("", "_bf16"):
        tokens = golden["tokens" + suffix].astype(int).tolist()
        positions = golden["logit_positions" + suffix].astype(int)
        logits, experts = run_model(model, config, tokens, device)
        for name in ("tokens", "logit_positions"):
            tensors[name + suffix] = golden[name + suffix]
        tensors["logits" + suffix] = logits[positions]
        expected = golden["logits" + suffix]
        worst = max(worst, float(np.abs(logits[positions] - expected).max() / np.abs(expected).max()))
        if experts is not None:
            tensors["experts" + suffix] = experts
            differing += int((experts != golden["experts" + suffix]).any(axis=-1).sum())
    routed = "experts" in tensors
    assert routed == ("experts" in golden), "the router hooks saw nothing"
    source = f"transformers {transformers.__version__} {model_class.__name__}, torch {torch.__version__}, float32"
    write_golden(os.path.join(out_dir, variant + ".transformers.safetensors"), tensors, dict(metadata, source=source))
    passed = worst <= TOLERANCE and differing == 0
    print(f"{variant:26s} {model_class.__name__:24s} {worst:10.2e}  {differing if routed else '-':>7}  "
          f"{time.time() - begin:5.1f} s  {'ok' if passed else 'DIFFERS'}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("variants", nargs="*")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {arguments.device}")
    print(f"{'variant':26s} {'model':24s} {'rel. diff.':>10}  experts    time")
    names = arguments.variants or sorted(name[:-5] for name in os.listdir(os.path.join(HERE, "configs")))
    failed = []
    for variant in names:
        try:
            passed = compare(variant, arguments.device, arguments.out)
        except Exception:  # one variant's failure must not hide the others' results
            traceback.print_exc()
            print(f"{variant:26s} FAILED, see above", flush=True)
            passed = False
        if not passed:
            failed.append(variant)
    print(f"failed: {', '.join(failed)}" if failed else f"all {len(names)} agree with the oracle")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
