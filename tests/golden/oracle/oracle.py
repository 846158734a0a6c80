"""Plain PyTorch forward pass of Sarvam-30B, Sarvam-105B, Qwen3, Qwen3-MoE and Llama: what engines are held to.

Written from the architecture description, not from any engine: every step is spelled out in the order of the text,
nothing is fused, and one sequence is run at a time. Shapes: n tokens, e experts, k chosen experts per token.
Works with torch 1.13 and 2.x.
"""
import math
from collections import namedtuple

import torch
import torch.nn.functional as F

from tiny_weights import head_dim, is_moe_layer, make_weights, shared_expert_width

# The rope_scaling block a sarvam_mla file without one stands for.
DEFAULT_MLA_ROPE_SCALING = {"type": "deepseek_yarn", "factor": 40, "original_max_position_embeddings": 4096,
                            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
KV_A_NORM_EPS = 1e-6  # fixed, whatever rms_norm_eps says

# Rope: inv_freq float64 (rotary_dim / 2); multiplier of cos and sin; mscale squared for the softmax scale of MLA.
Rope = namedtuple("Rope", "inv_freq multiplier softmax_multiplier")
# Route: ids int64 (n, k) by falling selection score; weights (n, k); margins (n): see select_experts.
Route = namedtuple("Route", "ids weights margins")
# Output: logits (n, vocab); experts [int64 (n, k) ascending] and margins [(n)] per MoE layer; cache for forward().
Output = namedtuple("Output", "logits experts margins cache")


def rms_norm(values, weight, eps):
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps) * weight


# ---------------------------------------------------------------------------------------------------------------------
# RoPE


def yarn_mscale(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def yarn_correction_range(dim, base, original_window, beta_fast, beta_slow):
    """(low, high): the pairs between which YaRN blends, clamped to [0, dim - 1]."""
    def correction(rotations):
        return dim * math.log(original_window / (rotations * 2 * math.pi)) / (2 * math.log(base))
    return max(math.floor(correction(beta_fast)), 0), min(math.ceil(correction(beta_slow)), dim - 1)


def _yarn(inv_freq, dim, base, block):
    low, high = yarn_correction_range(dim, base, block["original_max_position_embeddings"],
                                      block.get("beta_fast", 32), block.get("beta_slow", 1))
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    factor, all_dim = block["factor"], block.get("mscale_all_dim", 0)
    multiplier = block.get("attention_factor")
    if multiplier is None:
        multiplier = yarn_mscale(factor, block.get("mscale", 1.0)) / yarn_mscale(factor, all_dim)
    return Rope(inv_freq * (1 - ramp) + inv_freq / factor * ramp, multiplier, yarn_mscale(factor, all_dim) ** 2)


def _llama3(inv_freq, block):
    window, low, high = block["original_max_position_embeddings"], block["low_freq_factor"], block["high_freq_factor"]
    rotations = window * inv_freq / (2 * math.pi)  # turns within the original window
    smooth = ((rotations - low) / (high - low)).clamp(0, 1)
    return Rope(inv_freq / block["factor"] * (1 - smooth) + inv_freq * smooth, 1.0, 1.0)


def make_rope(config, dim):
    """Rope for `dim` rotated values a head."""
    base = float(config.get("rope_theta", 10000.0))
    inv_freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    block = config.get("rope_scaling")
    if block is None and config["model_type"] == "sarvam_mla":
        block = DEFAULT_MLA_ROPE_SCALING
    if block is None:
        return Rope(inv_freq, 1.0, 1.0)
    kind = block.get("rope_type", block.get("type"))
    if kind in ("yarn", "deepseek_yarn"):
        return _yarn(inv_freq, dim, base, block)
    if kind == "llama3":
        return _llama3(inv_freq, block)
    if kind == "default":
        return Rope(inv_freq, 1.0, 1.0)
    raise ValueError(f"rope_scaling: unknown type {kind!r}")


def rotate(x, positions, rope, interleaved):
    """x (n, heads, d): rotates the first 2 * len(inv_freq) values of every head, pairs (2i, 2i+1) or (i, i + half)."""
    half = rope.inv_freq.numel()
    angles = positions.to(x.dtype)[:, None] * rope.inv_freq.to(x.dtype)[None, :]
    cos = (angles.cos() * rope.multiplier)[:, None, :]
    sin = (angles.sin() * rope.multiplier)[:, None, :]
    rotated, rest = x[..., :2 * half], x[..., 2 * half:]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = rotated[..., :half], rotated[..., half:]
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((rotated, rest), dim=-1)


# ---------------------------------------------------------------------------------------------------------------------
# Routing


def group_scores(scores, n_group):
    """(n, n_group): sum of the two largest selection scores of every group of consecutive experts."""
    grouped = scores.reshape(scores.shape[0], n_group, -1)
    return grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)


def _gap(sorted_scores, kept):
    """Gap between the last kept and the first dropped score; infinite if nothing is dropped."""
    if kept >= sorted_scores.shape[-1]:
        return torch.full(sorted_scores.shape[:1], math.inf, dtype=sorted_scores.dtype)
    return sorted_scores[:, kept - 1] - sorted_scores[:, kept]


def select_experts(scores, k, n_group=1, topk_group=1):
    """scores (n, e), bias included -> ids (n, k) by falling score (equal scores: lowest index), margins (n).

    A margin is the smallest score gap at which the choice would change: between the k-th and the (k+1)-th expert of
    the kept groups and, if groups are limited, between the last kept and the first dropped group.
    """
    margins = torch.full(scores.shape[:1], math.inf, dtype=scores.dtype)
    if n_group > 1:
        ordered = torch.sort(group_scores(scores, n_group), dim=-1, descending=True, stable=True)
        margins = torch.minimum(margins, _gap(ordered.values, topk_group))
        keep = torch.zeros(scores.shape[0], n_group, dtype=torch.bool)
        keep.scatter_(1, ordered.indices[:, :topk_group], True)
        keep = keep.repeat_interleave(scores.shape[1] // n_group, dim=1)
        scores = scores.masked_fill(~keep, -math.inf)
    ordered = torch.sort(scores, dim=-1, descending=True, stable=True)
    return ordered.indices[:, :k], torch.minimum(margins, _gap(ordered.values, k))


def route_sigmoid(logits, bias, k, n_group, topk_group, scale, normalise, combine_biased=False):
    """Sarvam's router: the bias takes part in the choice only, the weights come from the plain sigmoid scores."""
    scores = torch.sigmoid(logits)
    selection = scores if bias is None else scores + bias
    ids, margins = select_experts(selection, k, n_group, topk_group)
    weights = (selection if combine_biased else scores).gather(1, ids)
    if normalise and k > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return Route(ids, scale * weights, margins)


def route_softmax(logits, k, normalise):
    """Qwen3-MoE's router. Margins are gaps of logits: probabilities of many experts all lie close together."""
    ids, margins = select_experts(logits, k)
    weights = torch.softmax(logits, dim=-1).gather(1, ids)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return Route(ids, weights, margins)


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def split_qkv(qkv, num_heads, num_kv_heads, dim):
    """qkv (n, (num_heads + 2 num_kv_heads) * dim) -> q, k, v (n, heads, dim): three contiguous blocks of rows."""
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, dim)
    return heads[:, :num_heads], heads[:, num_heads:num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads:]


def causal_softmax(scores, num_new):
    """scores (heads, num_new, total): the new tokens are the last ones of the sequence."""
    total = scores.shape[-1]
    query_index = torch.arange(total - num_new, total)[:, None]
    return torch.softmax(scores.masked_fill(torch.arange(total)[None, :] > query_index, -math.inf), dim=-1)


class Oracle:
    """One model with its weights. `absorbed` picks the second form of MLA; `mutations` breaks one thing on purpose.

    n_group and topk_group, when given, override the config (the flag for checkpoints that do not carry them).
    Mutations: swap_pairing, drop_mscale, biased_combine.
    """

    def __init__(self, config, seed=1234, dtype=torch.float32, weights=None, n_group=None, topk_group=None,
                 absorbed=False, mutations=()):
        self.config = config
        self.family = config["model_type"]
        self.dtype = dtype
        weights = make_weights(config, seed) if weights is None else weights
        self.weights = {name: torch.as_tensor(value).to(dtype) for name, value in weights.items()}
        self.n_group = n_group or config.get("n_group") or 1
        self.topk_group = topk_group or config.get("topk_group") or 1
        self.absorbed = absorbed
        self.mutations = frozenset(mutations)
        if self.family == "sarvam_mla":
            self.rope = make_rope(config, config["qk_rope_head_dim"])
        else:
            self.rope = make_rope(config, int(head_dim(config) * config.get("partial_rotary_factor", 1.0)))
        self.softmax_scale = self._softmax_scale()

    def _softmax_scale(self):
        if self.family != "sarvam_mla":
            return head_dim(self.config) ** -0.5
        scale = (self.config["qk_nope_head_dim"] + self.config["qk_rope_head_dim"]) ** -0.5
        return scale if "drop_mscale" in self.mutations else scale * self.rope.softmax_multiplier

    def _linear(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def _norm(self, x, name, eps=None):
        eps = self.config.get("rms_norm_eps", 1e-6) if eps is None else eps
        return rms_norm(x, self.weights[name + ".weight"], eps)

    def _rotate(self, x, positions):
        interleaved = (self.family == "sarvam_mla") != ("swap_pairing" in self.mutations)
        return rotate(x, positions, self.rope, interleaved)

    def _qkv(self, x, prefix):
        """q (n, heads, d), k and v (n, kv heads, d), q and k normed where the model norms them."""
        num_heads, num_kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        dim = head_dim(self.config)
        if self.family == "sarvam_moe":
            q, k, v = split_qkv(self._linear(x, prefix + "query_key_value"), num_heads, num_kv_heads, dim)
            if self.config.get("use_qk_norm", True):
                q, k = self._norm(q, prefix + "query_layernorm"), self._norm(k, prefix + "key_layernorm")
            return q, k, v
        q = self._linear(x, prefix + "q_proj").view(-1, num_heads, dim)
        k = self._linear(x, prefix + "k_proj").view(-1, num_kv_heads, dim)
        v = self._linear(x, prefix + "v_proj").view(-1, num_kv_heads, dim)
        if self.family != "llama":
            q, k = self._norm(q, prefix + "q_norm"), self._norm(k, prefix + "k_norm")
        return q, k, v

    def _gqa(self, x, prefix, positions, cached):
        q, k, v = self._qkv(x, prefix)
        q, k = self._rotate(q, positions), self._rotate(k, positions)
        if cached is not None:
            k, v = torch.cat((cached[0], k)), torch.cat((cached[1], v))
        group = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,thd->hqt", q, keys) * self.softmax_scale
        out = torch.einsum("hqt,thd->qhd", causal_softmax(scores, x.shape[0]), values)
        return self._linear(out.flatten(1), prefix + ("dense" if self.family == "sarvam_moe" else "o_proj")), (k, v)

    def _mla(self, x, prefix, positions, cached):
        config, n = self.config, x.shape[0]
        heads, nope, rope_dim = config["num_attention_heads"], config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        v_dim, rank = config["v_head_dim"], config["kv_lora_rank"]
        q = self._linear(x, prefix + "q_proj").view(n, heads, nope + rope_dim)
        q_nope, q_pe = q[..., :nope], self._rotate(q[..., nope:], positions)
        latent_and_key = self._linear(x, prefix + "kv_a_proj_with_mqa")
        latent = self._norm(latent_and_key[:, :rank], prefix + "kv_a_layernorm", KV_A_NORM_EPS)
        k_pe = self._rotate(latent_and_key[:, None, rank:], positions)[:, 0]
        if cached is not None:
            latent, k_pe = torch.cat((cached[0], latent)), torch.cat((cached[1], k_pe))
        kv_b = self.weights[prefix + "kv_b_proj.weight"].view(heads, nope + v_dim, rank)
        attend = self._attend_absorbed if self.absorbed else self._attend_expanded
        out = attend(q_nope, q_pe, latent, k_pe, kv_b)
        return self._linear(out.reshape(n, heads * v_dim), prefix + "o_proj"), (latent, k_pe)

    def _attend_expanded(self, q_nope, q_pe, latent, k_pe, kv_b):
        nope = q_nope.shape[-1]
        kv = torch.einsum("tr,hor->tho", latent, kv_b)
        scores = torch.einsum("qhd,thd->hqt", q_nope, kv[..., :nope]) + torch.einsum("qhd,td->hqt", q_pe, k_pe)
        return torch.einsum("hqt,thd->qhd", causal_softmax(scores * self.softmax_scale, q_pe.shape[0]), kv[..., nope:])

    def _attend_absorbed(self, q_nope, q_pe, latent, k_pe, kv_b):
        nope = q_nope.shape[-1]
        q_latent = torch.einsum("qhd,hdr->qhr", q_nope, kv_b[:, :nope])
        scores = torch.einsum("qhr,tr->hqt", q_latent, latent) + torch.einsum("qhd,td->hqt", q_pe, k_pe)
        out_latent = torch.einsum("hqt,tr->qhr", causal_softmax(scores * self.softmax_scale, q_pe.shape[0]), latent)
        return torch.einsum("qhr,hdr->qhd", out_latent, kv_b[:, nope:])

    def _swiglu(self, x, prefix):
        return self._linear(F.silu(self._linear(x, prefix + "gate_proj")) * self._linear(x, prefix + "up_proj"),
                            prefix + "down_proj")

    def _route(self, x, prefix):
        config, k = self.config, self.config["num_experts_per_tok"]
        logits = self._linear(x, prefix + "gate")
        if self.family == "qwen3_moe":
            return route_softmax(logits, k, config.get("norm_topk_prob", False))
        bias_name = "expert_bias" if self.family == "sarvam_moe" else "e_score_correction_bias"
        return route_sigmoid(logits, self.weights.get(f"{prefix}gate.{bias_name}"), k, self.n_group, self.topk_group,
                             config.get("routed_scaling_factor", 1.0), config.get("norm_topk_prob", True),
                             "biased_combine" in self.mutations)

    def _moe(self, x, prefix):
        route = self._route(x, prefix)
        out = torch.zeros_like(x)
        for expert in route.ids.unique().tolist():
            token, slot = torch.where(route.ids == expert)
            weight = route.weights[token, slot][:, None]
            out.index_add_(0, token, weight * self._swiglu(x[token], f"{prefix}experts.{expert}."))
        if self.family != "qwen3_moe" and shared_expert_width(self.config):
            out = out + self._swiglu(x, prefix + "shared_experts.")
        return out, route

    @torch.no_grad()
    def forward(self, tokens, positions=None, cache=None):
        """tokens: ids that follow what `cache` holds; positions default to their index. Returns Output."""
        cached = cache or [None] * self.config["num_hidden_layers"]
        past = 0 if cache is None else cache[0][0].shape[0]
        if positions is None:
            positions = torch.arange(past, past + len(tokens))
        embedding = "model.word_embeddings" if self.family == "sarvam_moe" else "model.embed_tokens"
        attention, folder = (self._mla, "self_attn.") if self.family == "sarvam_mla" else \
            (self._gqa, "attention." if self.family == "sarvam_moe" else "self_attn.")
        h = self.weights[embedding + ".weight"][torch.as_tensor(tokens, dtype=torch.int64)]
        experts, margins, new_cache = [], [], []
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            out, layer_cache = attention(self._norm(h, prefix + "input_layernorm"), prefix + folder, positions,
                                         cached[layer])
            new_cache.append(layer_cache)
            h = h + out
            x = self._norm(h, prefix + "post_attention_layernorm")
            if is_moe_layer(self.config, layer):
                out, route = self._moe(x, prefix + "mlp.")
                experts.append(route.ids.sort(dim=-1).values)
                margins.append(route.margins)
            else:
                out = self._swiglu(x, prefix + "mlp.")
            h = h + out
        head = embedding if self.config.get("tie_word_embeddings", False) else "lm_head"
        return Output(self._linear(self._norm(h, "model.norm"), head), experts, margins, new_cache)
