// The sampling and output fields that completions and chat share.
#pragma once

#include "server/api_request.h"
#include "server/field_reader.h"

namespace vayu::server {

// Errors stick to the reader.
void read_generate_options(FieldReader& reader, const RequestRules& rules, GenerateOptions* options);
// Refuses fields that would change the answer and that this server does not know how to honour.
void refuse_unsupported(FieldReader& reader);
// top_logprobs x tokens x answers must stay under kMaxLogprobEntries.
Status check_logprob_volume(const GenerateOptions& options, size_t answers, int32_t max_tokens);

}  // namespace vayu::server
