// A model as a list of choices: numbers, which checkpoint tensor fills which slot, which blocks a layer runs.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model/blocks/step.h"
#include "model/config.h"

namespace vayu::model {

// Where a tensor ends up. Tensors that share a matrix slot are stacked by rows, in table order.
enum class Slot : uint8_t {
  kEmbedding,    // matrix
  kOutputNorm,   // vector
  kHead,         // matrix; absent: tied to the embedding
  kRopeFactors,  // vector
  // one a layer:
  kAttentionNorm,    // vector
  kQkv,              // matrix: Q over K over V
  kAttentionOutput,  // matrix
  kMlpNorm,          // vector
  kGateUp,           // matrix: gate over up
  kDown,             // matrix
};

// Sizes named, so that one table serves every checkpoint of an architecture.
enum class Dim : uint8_t { kHidden, kQuery, kKeyValue, kFfn, kVocab, kRotaryHalf };

struct TensorRow {
  Slot slot;
  std::string_view name;   // in the checkpoint; "{}" stands for the layer
  std::vector<Dim> shape;  // (rows, cols) of a matrix, (n) of a vector; vectors are held as floats whatever the format
  bool optional = false;
};

// Runs one half of a layer: reads the residual stream, adds to it.
using Block = void (*)(const Step&, const LayerWeights&, const ops::KvLayer&);

struct LayerRecipe {
  Block attention = nullptr;
  Block mlp = nullptr;
};

struct Recipe {
  ModelConfig config;
  std::span<const TensorRow> tensors;  // static
  std::vector<LayerRecipe> layers;     // (num_layers)
};

}  // namespace vayu::model
