// What a model folder says about tokens around and at the end of a text: post-processor, BOS, ends.
#pragma once

#include "tokenizer/pipeline/json_node.h"
#include "tokenizer/pipeline/pipeline_tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace vayu {

// Tokens that a "post_processor" object puts around a single text: pipeline.prefix and pipeline.suffix.
Status read_post_processor(const JsonNode& node, Pipeline& pipeline);

// Sets bos_id and end_ids, and lets tokenizer_config overrule prefix and suffix. Expects pipeline.tokens with all
// tokens indexed.
Status read_folder_texts(const ModelFolderTexts& folder, Pipeline& pipeline);

}  // namespace vayu
