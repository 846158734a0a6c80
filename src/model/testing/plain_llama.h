// The plain forward pass of a TinyLlama: one sequence, no cache, double sums, no code shared with the engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/types.h"
#include "model/testing/tiny_llama.h"

namespace vayu::model::testing {

using Floats = std::vector<float>;

struct PlainRope {
  std::vector<double> inv_freq;
  double factor = 1.0;
};

inline std::vector<double> matvec(const Floats& w, const std::vector<double>& x) {
  const size_t rows = w.size() / x.size();
  std::vector<double> y(rows, 0.0);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < x.size(); ++c) y[r] += double{w[r * x.size() + c]} * x[c];
  }
  return y;
}

inline std::vector<double> plain_norm(const std::vector<double>& x, const Floats& weight) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(sum / x.size() + 1e-5) * weight[i];
  return y;
}

inline void plain_rotate(const PlainRope& rope, double* head, int position) {
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {  // GGUF llama: neighbours are pairs
    const double c = std::cos(position * rope.inv_freq[i]) * rope.factor;
    const double s = std::sin(position * rope.inv_freq[i]) * rope.factor;
    const double a = head[2 * i];
    const double b = head[2 * i + 1];
    head[2 * i] = a * c - b * s;
    head[2 * i + 1] = a * s + b * c;
  }
}

class PlainLlama {
 public:
  PlainLlama(const TinyLlama& spec, PlainRope rope) : spec_(spec), rope_(std::move(rope)) {}

  Floats logits(const std::vector<TokenId>& tokens) {
    std::vector<std::vector<double>> x;
    for (const TokenId id : tokens) {
      const float* row = weight("token_embd.weight").data() + int64_t{id} * spec_.hidden;
      x.emplace_back(row, row + spec_.hidden);
    }
    for (int layer = 0; layer < spec_.layers; ++layer) {
      prefix_ = "blk." + std::to_string(layer) + ".";
      attention(x);
      mlp(x);
    }
    Floats out;
    for (const auto& row : x) {
      const auto normed = plain_norm(row, weight("output_norm.weight"));
      for (const double v : matvec(weight(spec_.tied ? "token_embd.weight" : "output.weight"), normed)) {
        out.push_back(static_cast<float>(v));
      }
    }
    return out;
  }

 private:
  const Floats& weight(const std::string& name) const { return spec_.weights.at(name); }
  const Floats& layer_weight(const std::string& name) const { return weight(prefix_ + name + ".weight"); }

  void attention(std::vector<std::vector<double>>& x) {
    const int d = spec_.head_dim;
    std::vector<std::vector<double>> k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const auto normed = plain_norm(x[t], layer_weight("attn_norm"));
      auto q = matvec(layer_weight("attn_q"), normed);
      k.push_back(matvec(layer_weight("attn_k"), normed));
      v.push_back(matvec(layer_weight("attn_v"), normed));
      for (int h = 0; h < spec_.q_heads; ++h) plain_rotate(rope_, &q[h * d], static_cast<int>(t));
      for (int h = 0; h < spec_.kv_heads; ++h) plain_rotate(rope_, &k[t][h * d], static_cast<int>(t));
      std::vector<double> mixed(q.size(), 0.0);
      for (int h = 0; h < spec_.q_heads; ++h) {
        const int kv_head = h / (spec_.q_heads / spec_.kv_heads);
        std::vector<double> p(t + 1);
        for (size_t s = 0; s <= t; ++s) {
          p[s] = std::inner_product(&q[h * d], &q[h * d] + d, &k[s][kv_head * d], 0.0) / std::sqrt(double(d));
        }
        const double top = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& e : p) sum += e = std::exp(e - top);
        for (size_t s = 0; s <= t; ++s) {
          for (int i = 0; i < d; ++i) mixed[h * d + i] += p[s] / sum * v[s][kv_head * d + i];
        }
      }
      pending_.push_back(matvec(layer_weight("attn_output"), mixed));
    }
    for (size_t t = 0; t < x.size(); ++t) add(x[t], pending_[t]);
    pending_.clear();
  }

  void mlp(std::vector<std::vector<double>>& x) {
    for (auto& row : x) {
      const auto normed = plain_norm(row, layer_weight("ffn_norm"));
      auto gate = matvec(layer_weight("ffn_gate"), normed);
      const auto up = matvec(layer_weight("ffn_up"), normed);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      add(row, matvec(layer_weight("ffn_down"), gate));
    }
  }

  static void add(std::vector<double>& x, const std::vector<double>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const TinyLlama& spec_;
  PlainRope rope_;
  std::string prefix_;
  std::vector<std::vector<double>> pending_;
};

}  // namespace vayu::model::testing
