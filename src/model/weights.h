// The weights of a model in the layout of the ops, and how a checkpoint fills them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "loader/gguf.h"
#include "model/rope_frequencies.h"
#include "ops/gemm/matrix.h"

namespace vayu::model {

struct Recipe;

struct LayerWeights {
  std::vector<float> attention_norm;              // (hidden)
  std::unique_ptr<ops::Matrix> qkv;               // (qkv_width, hidden)
  std::unique_ptr<ops::Matrix> attention_output;  // (hidden, q_width)
  std::vector<float> mlp_norm;                    // (hidden)
  std::unique_ptr<ops::Matrix> gate_up;           // (2 * ffn, hidden)
  std::unique_ptr<ops::Matrix> down;              // (hidden, ffn)
};

struct ModelWeights {
  std::unique_ptr<ops::Matrix> embedding;  // (vocab_size, hidden)
  std::vector<LayerWeights> layers;        // (num_layers)
  std::vector<float> output_norm;          // (hidden)
  std::unique_ptr<ops::Matrix> head;       // (vocab_size, hidden); null: tied to the embedding
  std::vector<float> rope_factors;         // (rotary_dim / 2) or empty

  const ops::Matrix& head_matrix() const { return head ? *head : *embedding; }
  int64_t bytes() const;
};

// Called from the loading thread after each slot: tensors placed so far, and in all.
using LoadProgress = std::function<void(int64_t tensors_done, int64_t tensors_total)>;

// Walks the recipe's table: every row is read, checked for shape and packed for ctx.backend; each tensor of the file is
// used exactly once. Memory beyond the result: one slot's bytes. Errors name the file and the tensor: kCorrupt for
// missing, misshaped or unexpected ones, kUnsupported for formats the backend does not take, kIo.
Result<ModelWeights> load_weights(const loader::GgufFile& file, const Recipe& recipe, const ops::OpContext& ctx,
                                  const LoadProgress& progress);

}  // namespace vayu::model
