#include <algorithm>

#include "base/check.h"
#include "ops/sampling/device_sample_table.h"

namespace vayu::ops {
namespace {

constexpr int64_t kAlignment = 256;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// Byte offsets; the pinned memory holds kSteps times tasks, lists and results.
struct DeviceSampleTable::Layout {
  explicit Layout(const DeviceSampleCapacity& c) {
    lists = aligned(c.max_samples * int64_t{sizeof(DeviceSampleTask)});
    results = lists + aligned(c.max_list_words * int64_t{sizeof(int32_t)});
    pinned_step = results + aligned(c.max_samples * int64_t{sizeof(DeviceSampleResult)});
    scans = pinned_step;
    edited = scans + aligned(c.max_samples * int64_t{sizeof(DeviceRowScan)});
    device = edited + aligned(c.max_edited_rows * padded_vocab(c.vocab_size) * int64_t{sizeof(float)});
  }
  int64_t lists, results, pinned_step, scans, edited, device;  // tasks lie at 0
};

int64_t DeviceSampleTable::device_bytes(const DeviceSampleCapacity& capacity) { return Layout(capacity).device; }
int64_t DeviceSampleTable::pinned_bytes(const DeviceSampleCapacity& capacity) {
  return kSteps * Layout(capacity).pinned_step;
}

Result<DeviceSampleTable> DeviceSampleTable::create(const DeviceSampleCapacity& capacity) {
  DeviceSampleTable table;
  table.capacity_ = capacity;
  Result<DeviceMemory> device = DeviceMemory::create(device_bytes(capacity));
  if (!device.ok()) return device.error();
  Result<DeviceMemory> pinned = DeviceMemory::create_pinned(pinned_bytes(capacity));
  if (!pinned.ok()) return pinned.error();
  table.device_ = std::move(device).value();
  table.pinned_ = std::move(pinned).value();
  return table;
}

Status DeviceSampleTable::upload(std::span<const SampleTask> samples, std::span<const int32_t> prev_rows,
                                 int32_t padded_samples, CudaStream stream) {
  const auto num_samples = static_cast<int32_t>(samples.size());
  VAYU_CHECK(num_samples <= padded_samples && padded_samples <= capacity_.max_samples, "{} samples of {}, room for {}",
             num_samples, padded_samples, capacity_.max_samples);
  VAYU_CHECK(prev_rows.empty() || prev_rows.size() == samples.size(), "{} of {}", prev_rows.size(), samples.size());
  VAYU_CHECK(uploads_ - reads_ < kSteps, "{} steps not read", uploads_ - reads_);
  const int64_t words = list_words(samples);
  VAYU_CHECK(words <= capacity_.max_list_words, "{} words of lists, room for {}", words, capacity_.max_list_words);
  const Layout layout(capacity_);
  const int64_t step = uploads_++ % kSteps;
  num_samples_[step] = num_samples;
  std::byte* pinned = pinned_.data() + step * layout.pinned_step;
  auto* tasks = reinterpret_cast<DeviceSampleTask*>(pinned);
  pack_sample_tasks(samples, tasks, reinterpret_cast<int32_t*>(pinned + layout.lists));
  for (size_t i = 0; i < prev_rows.size(); ++i) tasks[i].prev_index = prev_rows[i];
  std::fill(tasks + num_samples, tasks + padded_samples, DeviceSampleTask{});
  const auto edited = std::count_if(tasks, tasks + num_samples, [](const auto& task) { return task.edit_row >= 0; });
  VAYU_CHECK(edited <= capacity_.max_edited_rows, "{} edited rows, room for {}", edited, capacity_.max_edited_rows);
  draw_needed_ = std::any_of(tasks, tasks + num_samples, needs_draw);

  if (padded_samples == 0) return {};
  const Status copied =
      copy_to_device(device_.data(), tasks, padded_samples * int64_t{sizeof(DeviceSampleTask)}, stream);
  if (!copied.ok() || words == 0) return copied;
  return copy_to_device(device_.data() + layout.lists, pinned + layout.lists, words * int64_t{sizeof(int32_t)}, stream);
}

DeviceSampleArgs DeviceSampleTable::args(const float* logits, int64_t logits_stride, int32_t num_samples,
                                         int32_t* next_tokens) const {
  const Layout layout(capacity_);
  DeviceSampleArgs args;
  args.logits = logits;
  args.logits_stride = logits_stride;
  args.vocab_size = capacity_.vocab_size;
  args.num_samples = num_samples;
  args.tasks = reinterpret_cast<const DeviceSampleTask*>(device_.data());
  args.lists = reinterpret_cast<int32_t*>(device_.data() + layout.lists);
  args.scans = reinterpret_cast<DeviceRowScan*>(device_.data() + layout.scans);
  args.edited = reinterpret_cast<float*>(device_.data() + layout.edited);
  args.results = reinterpret_cast<DeviceSampleResult*>(device_.data() + layout.results);
  args.next_tokens = next_tokens;
  return args;
}

Status DeviceSampleTable::download(CudaStream stream) {
  VAYU_CHECK(uploads_ > reads_, "no step uploaded");
  const Layout layout(capacity_);
  const int64_t step = (uploads_ - 1) % kSteps;
  if (num_samples_[step] == 0) return {};
  return copy_to_host(pinned_.data() + step * layout.pinned_step + layout.results, device_.data() + layout.results,
                      num_samples_[step] * int64_t{sizeof(DeviceSampleResult)}, stream);
}

void DeviceSampleTable::read_results(std::vector<SampleResult>& results) {
  VAYU_CHECK(uploads_ > reads_, "no step uploaded");
  const Layout layout(capacity_);
  const int64_t step = reads_++ % kSteps;
  const auto* landed =
      reinterpret_cast<const DeviceSampleResult*>(pinned_.data() + step * layout.pinned_step + layout.results);
  results.resize(num_samples_[step]);
  std::transform(landed, landed + num_samples_[step], results.begin(), to_sample_result);
}

}  // namespace vayu::ops
