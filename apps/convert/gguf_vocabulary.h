// The tokenizer of a model folder as GGUF metadata.
#pragma once

#include "apps/model_files.h"
#include "loader/gguf_writer.h"

namespace vayu {

// SentencePiece-style BPE with byte fallback (Sarvam's kind) is written as tokenizer.ggml.model "gpt2" with pre
// "sarvam-moe", which llama.cpp reads; a folder without tokenizer.json gets "none", so that token ids can still be run.
// Other kinds are kUnsupported.
Status write_gguf_vocabulary(const ModelFiles& files, loader::GgufWriter& writer);

}  // namespace vayu
