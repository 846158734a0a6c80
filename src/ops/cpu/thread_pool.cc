// The team of threads. A job is one 64-bit ticket, (job number, chunks not yet handed out): whoever decrements it by
// compare-and-swap owns a chunk. A thread that wakes too late for a job sees an empty ticket and touches nothing, so
// the caller waits for the chunks in flight only, never for a sleeping thread.
#include "ops/cpu/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vayu {
namespace {

constexpr int kChunkBits = 20;
constexpr uint64_t kChunkMask = (uint64_t{1} << kChunkBits) - 1;
constexpr int kPausesPerLook = 32;
// Longer than the serial gaps between the ops of a step, far shorter than what a person would notice on a power meter.
constexpr std::chrono::microseconds kSpin{50};

inline void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The cores that a "quota period" pair grants, or 0 for no limit.
int quota_cores(const std::string& path) {
  std::ifstream file(path);
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::max(1, static_cast<int>(std::strtod(quota.c_str(), nullptr) / period));
}

// Control groups version 2: the tightest quota on the way from this process's group to the root.
int cgroup_cores() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::string group;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  int cores = 0;
  while (true) {
    const int quota = quota_cores("/sys/fs/cgroup" + group + "/cpu.max");
    if (quota > 0 && (cores == 0 || quota < cores)) cores = quota;
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return cores;
    group.resize(slash);
  }
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
  if (cores <= 0) cores = static_cast<int>(std::max(1l, sysconf(_SC_NPROCESSORS_ONLN)));  // over 1024 processors
  const int quota = cgroup_cores();
  return quota > 0 ? std::min(cores, quota) : cores;
}

struct ThreadPool::State {
  // The job; written by the caller before the ticket is issued, read by whoever holds a live ticket. Atomic because a
  // late thread may look at them while the next job is being written; its compare-and-swap then fails.
  std::atomic<Task> task{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> grain{1};
  std::atomic<int64_t> num_chunks{0};
  uint64_t job = 0;  // caller only

  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<int64_t> chunks_done{0};
  alignas(64) std::atomic<int> parked{0};
  std::atomic<int> wake{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> running{false};
  bool oversubscribed = false;
  std::vector<std::thread> threads;

  bool work_one_chunk(int worker);
  void wait_for_work();
  void park();
  void worker_loop(int worker);
};

bool ThreadPool::State::work_one_chunk(int worker) {
  uint64_t seen = ticket.load(std::memory_order_acquire);
  while ((seen & kChunkMask) != 0) {
    const Task run_task = task.load(std::memory_order_relaxed);
    void* const run_context = context.load(std::memory_order_relaxed);
    const int64_t items = count.load(std::memory_order_relaxed);
    const int64_t step = grain.load(std::memory_order_relaxed);
    const int64_t chunk = num_chunks.load(std::memory_order_relaxed) - static_cast<int64_t>(seen & kChunkMask);
    // Success proves that the job read above is still open: it cannot close before this chunk is done.
    if (ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      run_task(run_context, chunk * step, std::min(items, (chunk + 1) * step), worker);
      chunks_done.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void ThreadPool::State::park() {
  const int seen_wake = wake.load(std::memory_order_seq_cst);
  parked.fetch_add(1, std::memory_order_seq_cst);
  // The caller issues the ticket, then reads `parked`; here it is the other way round. One of the two sees the other.
  if ((ticket.load(std::memory_order_seq_cst) & kChunkMask) == 0 && !stop.load(std::memory_order_seq_cst)) {
    wake.wait(seen_wake, std::memory_order_seq_cst);
  }
  parked.fetch_sub(1, std::memory_order_seq_cst);
}

void ThreadPool::State::wait_for_work() {
  auto deadline = std::chrono::steady_clock::now() + kSpin;
  while (!stop.load(std::memory_order_relaxed)) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if ((ticket.load(std::memory_order_acquire) & kChunkMask) != 0) return;
      cpu_pause();
    }
    if (oversubscribed) sched_yield();
    if (std::chrono::steady_clock::now() < deadline) continue;
    park();
    deadline = std::chrono::steady_clock::now() + kSpin;  // too late for one job is in time for the next
  }
}

void ThreadPool::State::worker_loop(int worker) {
  while (!stop.load(std::memory_order_acquire)) {
    if (!work_one_chunk(worker)) wait_for_work();
  }
}

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  const int cores = usable_cores();
  if (num_threads <= 0) num_threads = cores;
  state_->oversubscribed = num_threads > cores;
  for (int worker = 1; worker < num_threads; ++worker) {
    state_->threads.emplace_back([state = state_.get(), worker] { state->worker_loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_seq_cst);
  state_->wake.fetch_add(1, std::memory_order_seq_cst);
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(int64_t count, int64_t grain, Task task, void* context) {
  if (count <= 0) return;
  grain = std::max(grain, int64_t{1});
  if (count <= grain || state_->threads.empty()) {
    task(context, 0, count, 0);
    return;
  }
  State& state = *state_;
  VAYU_CHECK(!state.running.load(std::memory_order_relaxed), "a job was started inside or beside another");
  state.running.store(true, std::memory_order_relaxed);
  grain = std::max(grain, count / static_cast<int64_t>(kChunkMask) + 1);
  const int64_t num_chunks = (count + grain - 1) / grain;
  state.task.store(task, std::memory_order_relaxed);
  state.context.store(context, std::memory_order_relaxed);
  state.count.store(count, std::memory_order_relaxed);
  state.grain.store(grain, std::memory_order_relaxed);
  state.num_chunks.store(num_chunks, std::memory_order_relaxed);
  state.chunks_done.store(0, std::memory_order_relaxed);
  ++state.job;
  state.ticket.store(state.job << kChunkBits | static_cast<uint64_t>(num_chunks), std::memory_order_seq_cst);
  if (state.parked.load(std::memory_order_seq_cst) > 0) {
    state.wake.fetch_add(1, std::memory_order_seq_cst);
    state.wake.notify_all();
  }
  while (state.work_one_chunk(0)) {
  }
  const auto patience = std::chrono::steady_clock::now() + kSpin;
  while (state.chunks_done.load(std::memory_order_acquire) != num_chunks) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (state.chunks_done.load(std::memory_order_acquire) == num_chunks) break;
      cpu_pause();
    }
    // Somebody may have taken the core of the thread we wait for: offer ours.
    if (state.oversubscribed || std::chrono::steady_clock::now() >= patience) sched_yield();
  }
  state.running.store(false, std::memory_order_relaxed);
}

}  // namespace vayu
