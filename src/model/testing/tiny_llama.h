// A llama GGUF of a few kilobytes with random weights, for tests of anything that needs a model: build, change, write.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "loader/gguf_writer.h"

namespace vayu::model::testing {

struct TinyLlama {
  int32_t layers = 2;
  int32_t hidden = 64;
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 16;
  int32_t rotary_dim = 16;
  int32_t ffn = 96;
  int32_t vocab = 80;
  int32_t context = 256;
  float rope_base = 10000.0f;
  bool tied = true;
  DataFormat format = DataFormat::kF32;  // of the matrices
  DataFormat embedding_format = DataFormat::kF32;
  std::map<std::string, DataFormat> other_formats;  // of single tensors, over the two above
  std::vector<float> rope_factors;                  // written as rope_freqs.weight when not empty
  std::function<void(loader::GgufWriter&)> extra;   // more keys or tensors
  std::string without;                              // a tensor to leave out

  // What the file holds, expanded to float: name -> row-major values.
  std::map<std::string, std::vector<float>> weights;

  std::vector<std::byte> build() {
    loader::GgufWriter writer;
    writer.add_string("general.architecture", "llama");
    writer.add_string("general.name", "tiny");
    writer.add_u32("llama.block_count", layers);
    writer.add_u32("llama.embedding_length", hidden);
    writer.add_u32("llama.feed_forward_length", ffn);
    writer.add_u32("llama.attention.head_count", q_heads);
    writer.add_u32("llama.attention.head_count_kv", kv_heads);
    writer.add_u32("llama.attention.key_length", head_dim);
    writer.add_u32("llama.attention.value_length", head_dim);
    writer.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    writer.add_u32("llama.context_length", context);
    writer.add_u32("llama.rope.dimension_count", rotary_dim);
    writer.add_f32("llama.rope.freq_base", rope_base);
    add(writer, "token_embd.weight", {vocab, hidden}, embedding_format, 1.0f);
    for (int32_t layer = 0; layer < layers; ++layer) add_layer(writer, "blk." + std::to_string(layer) + ".");
    add(writer, "output_norm.weight", {hidden}, DataFormat::kF32, 0);
    if (!tied) add(writer, "output.weight", {vocab, hidden}, format, 0.5f);
    if (!rope_factors.empty()) {
      writer.add_tensor("rope_freqs.weight", std::vector<int64_t>{rotary_dim / 2}, DataFormat::kF32, rope_factors);
    }
    if (extra) extra(writer);
    return writer.bytes();
  }

 private:
  void add_layer(loader::GgufWriter& writer, const std::string& prefix) {
    const int64_t q = int64_t{q_heads} * head_dim;
    const int64_t kv = int64_t{kv_heads} * head_dim;
    add(writer, prefix + "attn_norm.weight", {hidden}, DataFormat::kF32, 0);
    add(writer, prefix + "attn_q.weight", {q, hidden}, format, 0.12f);
    add(writer, prefix + "attn_k.weight", {kv, hidden}, format, 0.12f);
    add(writer, prefix + "attn_v.weight", {kv, hidden}, format, 0.2f);
    add(writer, prefix + "attn_output.weight", {hidden, q}, format, 0.2f);
    add(writer, prefix + "ffn_norm.weight", {hidden}, DataFormat::kF32, 0);
    add(writer, prefix + "ffn_gate.weight", {ffn, hidden}, format, 0.2f);
    add(writer, prefix + "ffn_up.weight", {ffn, hidden}, format, 0.2f);
    add(writer, prefix + "ffn_down.weight", {hidden, ffn}, format, 0.2f);
  }

  // Normal values of the given deviation; 0: a norm weight around 1.
  void add(loader::GgufWriter& writer, const std::string& name, std::vector<int64_t> shape, DataFormat as,
           float deviation) {
    std::normal_distribution<float> normal(deviation == 0 ? 1.0f : 0.0f, deviation == 0 ? 0.2f : deviation);
    const int64_t cols = shape.back();
    const int64_t rows = shape.size() == 2 ? shape[0] : 1;
    std::vector<float> values(rows * cols);
    for (float& v : values) v = normal(rng_);
    if (name == without) return;
    if (const auto it = other_formats.find(name); it != other_formats.end()) as = it->second;
    writer.add_tensor(name, shape, as, values);
    std::vector<std::byte> packed(row_bytes(as, cols));
    for (int64_t row = 0; row < rows; ++row) {
      quantize_row(as, values.data() + row * cols, packed.data(), cols);
      dequantize_row(as, packed.data(), values.data() + row * cols, cols);
    }
    weights[name] = std::move(values);
  }

  std::mt19937 rng_{1234};
};

}  // namespace vayu::model::testing
