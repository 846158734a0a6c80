#include "ops/sampling/sample.h"

#include "base/check.h"
#include "ops/sampling/philox.h"

namespace vayu::ops {

void sample_ref(const SampleArgs& args);                        // sample_ref.cc
void sample_cpu(const OpContext& ctx, const SampleArgs& args);  // sample_cpu.cc
int64_t sample_cpu_scratch_bytes(const OpContext& ctx, int64_t vocab_size);

double counter_uniform(uint64_t seed, uint64_t counter) {
  const auto words = philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[1]} << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int64_t sample_scratch_bytes(const OpContext& ctx, int64_t vocab_size) {
  return ctx.backend == Backend::kReference ? 0 : sample_cpu_scratch_bytes(ctx, vocab_size);
}

void sample(const OpContext& ctx, const SampleArgs& args) {
  if (args.num_samples == 0) return;
  VAYU_CHECK(args.num_samples > 0 && args.vocab_size > 0, "{} samples over {}", args.num_samples, args.vocab_size);
  VAYU_CHECK(args.logits && args.tasks && args.results, "null pointer");
  for (int64_t i = 0; i < args.num_samples; ++i) {
    const SampleTask& task = args.tasks[i];
    VAYU_CHECK(task.params, "task {} without parameters", i);
    VAYU_CHECK(task.params->temperature >= 0 && task.params->min_p <= 1, "task {}: temperature {}, min_p {}", i,
               task.params->temperature, task.params->min_p);
    VAYU_CHECK(task.target < args.vocab_size && task.forced < args.vocab_size, "task {}: target {}, forced {}", i,
               task.target, task.forced);
  }
  if (ctx.backend == Backend::kReference) return sample_ref(args);
  VAYU_CHECK(args.scratch, "no scratch");
  sample_cpu(ctx, args);
}

}  // namespace vayu::ops
