// The draw: a cluster of blocks a row. It reads the row (1 MiB, from L2 when the scan has just been there) about once a
// step below; few rows take larger clusters, so that one row alone runs on 8 SMs:
//   plain or top-p row    histogram by distance from the maximum (gives the total), then one gather for each boundary
//   top-k                 one gather above a bound from the scan's maxima, then as above over the k
//   penalties, bias, bans a copy and a scan of it
//   most likely tokens    two gathers
// A block has 1,024 threads of at most 64 registers and 65 KiB of shared memory: one an SM. A pass costs about 12
// instructions a logit: 262,144 / 8 blocks x 12 / 128 a clock = 3,072 clocks = 1.8 us; with its cluster barriers and a
// sort of 2 us a plain row takes about 10 us, 64 rows on 2 blocks each about 25 us.
#include "ops/cuda/require.h"
#include "ops/sampling/device_sample_edit.cuh"
#include "ops/sampling/device_sample_select.cuh"

namespace vayu::ops {
namespace {

// counter_uniform of sample.cc: Philox4x32-10, then 53 bits.
__device__ double uniform_of(uint64_t seed, int32_t output_index) {
  const auto counter = static_cast<uint64_t>(static_cast<int64_t>(output_index));
  uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0];
    c[1] = static_cast<uint32_t>(p1);
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1];
    c[3] = static_cast<uint32_t>(p0);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t{c[1]} << 32) | c[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Steps 6 and 7 of sample.h on s.row. scan_maxima: null for an edited row.
__device__ int32_t draw(const DeviceSampleTask& task, DrawShared& s, int32_t vocab_size, const float* scan_maxima) {
  const double temperature = task.temperature;
  change_row(s, [&](Row& row) {
    row.scale = static_cast<float>(fmin(1.4426950408889634 / temperature, static_cast<double>(FLT_MAX)));
    row.bins_per_unit = kBins / fmaxf(fminf(kReach, distance_of(row, row.min)), 1e-30f);
  });
  if (task.top_k > 0 && task.top_k < vocab_size) keep_top_k(s, task.top_k, scan_maxima);
  fill_histogram(s, kByDistance, 0, kHighestKey, 0);
  const uint64_t total = s.cumulative[kByDistance][kBins - 1];
  uint64_t kept = total;
  if (task.top_p < 1) {
    const auto needed = static_cast<uint64_t>(ceil(static_cast<double>(task.top_p) * static_cast<double>(total)));
    const Found last = select_by_mass(s, min(max(needed, uint64_t{1}), total) - 1);
    change_row(s, [&](Row& row) { row.floor_key = last.key; });
    kept = last.through;
  }
  if (task.min_p > 0) {  // p >= min_p max p, as a bound on the logit: exact where p is close to 1
    const float lowest = __double2float_ru(s.row.max + log(static_cast<double>(task.min_p)) * temperature);
    const uint64_t key = uint64_t{ordered_bits(lowest)} << 32;
    if (key > s.row.floor_key) {
      change_row(s, [&](Row& row) { row.floor_key = key; });
      kept = total_mass(s);
    }
  }
  const double u = uniform_of(task.seed, task.output_index);
  const auto target = static_cast<uint64_t>(u * static_cast<double>(kept));
  return id_of(select_by_mass(s, min(target, kept - 1)).key);
}

// The task's token; -1: nothing is left to draw from. s.row is the unedited row, and may be another one afterwards.
__device__ int32_t choose(const DeviceSampleArgs& args, const DeviceSampleTask& task, const DeviceRowScan& scan,
                          DrawShared& s) {
  const float* scan_maxima = scan.maxima;
  if (task.flags & kSampleEdits) {
    const uint64_t best = edit_row(args, task, s);
    if (best == 0) return -1;
    if (!(task.flags & kSampleDraw)) return id_of(best);
    scan_maxima = nullptr;
  }
  return draw(task, s, args.vocab_size, scan_maxima);
}

// Lists the most likely tokens of s.row, the unedited one; returns how many. The first block writes.
__device__ int32_t list_most_likely(DeviceSampleResult& result, DrawShared& s, const DeviceRowScan& scan,
                                    int32_t num_top, bool first_block) {
  keep_top_k(s, num_top, scan.maxima);
  const int32_t count = gather(s, {0, kHighestKey, -1}).count;
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (first_block && i < count) {
    const uint64_t key = s.keys[i];
    result.top[i].token = id_of(key);
    result.top[i].logprob = static_cast<float>(logit_of(key) - scan.log_sum);
  }
  return count;
}

__global__ void __launch_bounds__(kDrawThreads, 1) draw_rows(const DeviceSampleArgs args) {
  DrawShared& s = draw_shared();
  wait_for_inputs();
  let_next_start();
  const int blocks = cluster_blocks();
  const int32_t index = static_cast<int32_t>(blockIdx.x) / blocks;
  const DeviceSampleTask& task = args.tasks[index];
  const DeviceRowScan& scan = args.scans[index];
  if (!scan.finite || !is_for_draw(task)) return;  // the whole cluster
  const auto rank = static_cast<int>(cluster_rank());
  const float* logits = args.logits + index * args.logits_stride;
  const auto unedited = [&](Row& row) {
    row = {};
    row.logits = logits;
    row.slice = slice_of(args.vocab_size, rank, blocks);
    row.aligned = rows_aligned(args.logits, args.logits_stride);
    row.blocks = blocks;
    row.max = scan.max;
    row.min = scan.min;
  };
  int32_t token = task.fixed_token >= 0 ? task.fixed_token : scan.argmax;
  if (task.fixed_token < 0 && (task.flags & (kSampleDraw | kSampleEdits))) {
    change_row(s, unedited);
    token = choose(args, task, scan, s);
  }
  int32_t num_top = 0;
  if (token >= 0 && task.num_top > 0) {
    change_row(s, unedited);
    num_top = list_most_likely(args.results[index], s, scan, task.num_top, rank == 0);
  }
  if (rank > 0 || threadIdx.x > 0) return;
  const bool report = token >= 0 && (task.flags & kSampleLogprob);
  write_result(args, index, token, report ? static_cast<float>(logits[token] - scan.log_sum) : 0, num_top, token >= 0);
}

// Blocks a row: as many as there are SMs for, a power of two.
unsigned blocks_of(int32_t num_samples) {
  if (num_samples <= 16) return 8;
  if (num_samples <= 32) return 4;
  return num_samples <= 66 ? 2 : 1;
}

}  // namespace

void launch_draw(CudaStream stream, const DeviceSampleArgs& args) {
  const unsigned blocks = blocks_of(args.num_samples);
  launch_overlapped(draw_rows, {dim3(args.num_samples * blocks), dim3(kDrawThreads), sizeof(DrawShared), blocks},
                    stream, args);
}

}  // namespace vayu::ops
