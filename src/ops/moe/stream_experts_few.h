// The form of stream_experts for up to 8 tokens; see stream_experts_few.cu.
#pragma once

#include "ops/moe/stream_experts.h"

namespace vayu::ops {

bool stream_experts_few_fits(const StreamExpertsArgs& args);  // those of stream_experts_fits
void launch_stream_experts_few(CudaStream stream, const StreamExpertsArgs& args);

}  // namespace vayu::ops
