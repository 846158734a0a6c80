// The weights of a model in the layout of the ops, and how a checkpoint fills them (weights.cc; weight_plan.h decides
// which tensor goes where).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "loader/checkpoint.h"
#include "model/rope_frequencies.h"
#include "ops/gemm/matrix.h"

namespace vayu::model {

struct Recipe;
struct Fill;        // model/weight_plan.h
struct TensorRows;  // model/weight_plan.h
enum class Slot : uint8_t;

// Empty or null where a layer has no such weight.
struct LayerWeights {
  std::vector<float> attention_norm;              // (hidden)
  std::unique_ptr<ops::Matrix> qkv;               // (qkv_width, hidden)
  std::vector<float> q_norm;                      // (head_dim)
  std::vector<float> k_norm;                      // (head_dim)
  std::vector<float> latent_norm;                 // MLA: (latent_dim)
  std::unique_ptr<ops::Matrix> latent_to_k;       // MLA: U_K, or its transpose a head; see MlaForm
  std::unique_ptr<ops::Matrix> latent_to_v;       // MLA: (num_q_heads * v_dim, latent_dim), a part a head
  std::unique_ptr<ops::Matrix> latent_to_kv;      // in place of latent_to_v: U_K of all heads, then that; see MlaConfig
  std::unique_ptr<ops::Matrix> attention_output;  // (hidden, attention_width)
  std::vector<float> mlp_norm;                    // (hidden)
  std::unique_ptr<ops::Matrix> gate_up;           // dense MLP, or the shared expert: (2 * ffn, hidden)
  std::unique_ptr<ops::Matrix> down;              // (hidden, ffn)
  std::vector<float> router;                      // (num_experts, hidden)
  std::vector<float> router_bias;                 // (num_experts)
  std::unique_ptr<ops::Matrix>
      expert_gate_up;                        // (num_experts * 2 * expert_ffn, hidden): gate over up, expert by expert
  std::unique_ptr<ops::Matrix> expert_down;  // (num_experts * hidden, expert_ffn)
};

struct ModelWeights {
  std::unique_ptr<ops::Matrix> embedding;  // (vocab_size, hidden)
  std::vector<LayerWeights> layers;        // (num_layers)
  std::vector<float> output_norm;          // (hidden)
  std::unique_ptr<ops::Matrix> head;       // (vocab_size, hidden); null: tied to the embedding
  std::vector<float> rope_factors;         // (rotary_dim / 2) or empty

  const ops::Matrix& head_matrix() const { return head ? *head : *embedding; }
  int64_t matrix_bytes() const;
  int64_t bytes() const;
};

// Called under a lock, from any loading thread: bytes placed so far, and in all, both as the checkpoint stores them.
using LoadProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

// Makes the matrix of a slot where something else than ops::reserve_matrix shall; gate_up_ffn as of weight_plan.h.
struct MatrixRequest {
  int64_t cols = 0;
  std::span<const ops::PartShape> parts;
  Slot slot{};
  int32_t layer = 0;
  int32_t gate_up_ffn = 0;
};
using MatrixFactory = std::function<Result<std::unique_ptr<ops::Matrix>>(const MatrixRequest&)>;

struct WeightOptions {
  ops::OpContext ops;
  // What matrices are converted to while they stream in; none: kept as stored, FP8 becomes BF16 on the CPU. Quantised
  // formats leave the embedding and the head at Q8_0 or better, and matrices whose rows are not whole blocks at BF16.
  std::optional<DataFormat> format;
  std::vector<std::string> ignore;  // name patterns (loader/name_pattern.h) of tensors that `format` leaves as stored
  LoadProgress progress;
  MatrixFactory make_matrix;  // empty: ops::reserve_matrix
  // What a part is handed over in, in place of the rule of `format`; kF8E4M3: as stored, through fill_scaled.
  std::function<DataFormat(const Fill&, const TensorRows&)> part_format;
};

// Walks the recipe's table: every slot is filled once, converted and packed for the backend while it streams; each
// tensor of the checkpoint is used exactly once. Memory beyond the result: a few MiB a thread. Errors name the file and
// the tensor: kCorrupt for missing, misshaped or unexpected ones, kUnsupported for formats the backend does not take,
// kIo.
Result<ModelWeights> load_weights(const loader::Checkpoint& checkpoint, const Recipe& recipe,
                                  const WeightOptions& options);

}  // namespace vayu::model
