// A model as a list of choices: numbers, which checkpoint tensors fill which slot, which blocks a layer runs.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model/blocks/step.h"
#include "model/config.h"

namespace vayu::loader {
class GgufWriter;
}

namespace vayu::model {

struct Recipe;

// Where tensors end up. Tensors that share a matrix slot are stacked by rows, in the order of the form.
enum class Slot : uint8_t {
  kEmbedding,        // matrix
  kOutputNorm,       // vector
  kHead,             // matrix; not filled: tied to the embedding
  kRopeFactors,      // vector
  kAttentionNorm,    // vector
  kQkv,              // matrix: Q over K over V; with MLA Q over the latent over the shared key
  kQNorm,            // vector
  kKNorm,            // vector
  kLatentNorm,       // vector
  kLatentKv,         // MLA: kv_b_proj, split by head into latent_to_k and latent_to_v
  kAttentionOutput,  // matrix
  kMlpNorm,          // vector
  kGateUp,           // matrix: gate over up, of the dense MLP or the shared expert
  kDown,             // matrix
  kRouter,           // vector of (num_experts, hidden) floats
  kRouterBias,       // vector
  kExpertGateUp,     // matrix: for each expert gate over up
  kExpertDown,       // matrix: expert over expert
};

enum class Where : uint8_t { kModel, kEveryLayer, kDenseLayer, kMoeLayer };

// Sizes named, so that one table serves every checkpoint of an architecture.
enum class Dim : uint8_t {
  kHidden,
  kVocab,
  kQuery,         // q_width
  kKeyValue,      // kv_width
  kQkv,           // qkv_width
  kHeadDim,       // of Q, K and V
  kAttention,     // attention_width
  kLatent,        // MLA: latent_dim
  kLatentKey,     // MLA: latent_dim + rope_dim
  kLatentKv,      // MLA: num_q_heads * (nope_dim + v_dim)
  kFfn,           // of the dense MLP
  kSharedFfn,     // of the shared expert
  kExpertFfn,     // of a routed expert
  kExpertGateUp,  // 2 * expert_ffn
  kExperts,       // num_experts
  kRotaryHalf,
};

// One tensor of a checkpoint, or, where the name holds "{E}", one for each expert. A leading kExperts dimension instead
// is a stack that is cut by expert.
struct TensorPattern {
  std::string_view names;  // accepted spellings split by '|', the published one first; "{L}" is the layer
  std::vector<Dim> shape;  // (rows, cols) of a matrix, (n) of a vector
};

// The tensors that together fill a slot.
using Form = std::vector<TensorPattern>;

struct SlotRow {
  Slot slot;
  Where where;
  std::vector<Form> forms;  // ways a checkpoint may store it, the published one first
  bool optional = false;
};

// Runs one half of a layer: reads the residual stream, adds to it.
using Block = void (*)(const Step&, const LayerWeights&, const ops::KvLayer&);

struct LayerRecipe {
  Block attention = nullptr;
  Block mlp = nullptr;
  bool moe = false;
};

// How an architecture looks in GGUF, for writing it.
struct GgufExport {
  std::string_view architecture;
  std::span<const SlotRow> slots;
  void (*write_keys)(const Recipe&, loader::GgufWriter&) = nullptr;  // everything under "<architecture>."
};

struct Recipe {
  ModelConfig config;
  std::span<const SlotRow> slots;         // static
  std::vector<LayerRecipe> layers;        // (num_layers)
  const GgufExport* gguf = nullptr;       // static; null: no form is known
  std::vector<std::string_view> ignored;  // tensors that may be there and are not read (a tied head stored again)
};

bool is_vector(Slot slot);  // held as floats whatever the format
int64_t size_of(Dim dim, const ModelConfig& config);
// A spelling with layer and expert filled in.
std::string tensor_name(std::string_view spelling, int32_t layer, int32_t expert);
// The layers a row has tensors in; {-1} for Where::kModel; none for the head of a tied model.
std::vector<int32_t> layers_of(const SlotRow& row, const Recipe& recipe);
bool is_per_expert(const TensorPattern& pattern);

}  // namespace vayu::model
