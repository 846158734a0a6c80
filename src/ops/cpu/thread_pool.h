// A fixed team of threads for the CPU ops. The caller is worker 0; the others spin for a moment after a job, then park,
// so an idle server burns no core.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace vayu {

// Cores this process may keep busy: its affinity mask, cut by the quota of its control groups. At least 1.
int usable_cores();

class ThreadPool {
 public:
  // num_threads >= 1 counts the caller; 0 takes the cores this process may use (affinity and cgroup quota).
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls task(context, begin, end, worker) for disjoint chunks that cover [0, count), handed out dynamically `grain`
  // items at a time (so a thread the OS has taken away does not hold the others up for its whole share), and returns
  // when all are done. Allocates nothing. One job at a time; not reentrant.
  using Task = void (*)(void* context, int64_t begin, int64_t end, int worker);
  void run(int64_t count, int64_t grain, Task task, void* context);

  // The same for a lambda: f(begin, end, worker).
  template <class F>
  void parallel_for(int64_t count, int64_t grain, F&& f) {
    using Body = std::remove_reference_t<F>;
    const Task call = [](void* context, int64_t begin, int64_t end, int worker) {
      (*static_cast<Body*>(context))(begin, end, worker);
    };
    run(count, grain, call, &f);
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vayu
