// How the memory of a device is divided among weights, workspace and KV pages, and what of it is kept back: arithmetic,
// with the numbers in every refusal.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace vayu::model {

// Bytes, as printed at start. Every byte of the device is in one item.
struct DeviceMemoryPlan {
  int64_t weights = 0;
  int64_t kv_pages = 0;
  int64_t workspace = 0;  // activations, batch, sampling
  int64_t graphs = 0;     // of decode steps
  int64_t other = 0;      // the context with every kernel, what the driver rounds allocations up by, other processes
  int64_t free = 0;       // once all is taken
  int64_t total = 0;      // of the device

  void close(int64_t free_bytes);  // sets `free`, and `other` to what then has no name
};

struct DeviceMemoryNeeds {
  std::string device;   // its name
  int64_t total = 0;    // bytes of the device
  double fraction = 0;  // of them, for weights, workspace and pages together
  int64_t weights = 0;
  int64_t workspace = 0;
  int64_t workspace_taken = 0;  // of `workspace`, before the model is loaded
  int64_t staging = 0;          // given back when the weights are in place, before the rest is taken
  int32_t num_layers = 0;
  int32_t num_graphs = 0;
  int64_t page_bytes = 0;
  int64_t num_pages = 0;    // as asked for; 0: as many as fit
  int64_t least_pages = 0;  // without which nothing is loaded
  int64_t most_pages = 0;   // more are of no use

  int64_t budget() const { return static_cast<int64_t>(static_cast<double>(total) * fraction); }
  // What is taken behind the pages: the graphs, and 64 MiB of the driver's own, for what kernels spill and queues of
  // launches. A graph is reckoned at one piece of the driver's (2 MiB) and 8 KiB a node.
  int64_t reserve() const;
};

// Before anything is loaded, with what is free then: usable is the lesser of what `fraction` leaves and of what is free
// without the reserve and half a piece of 2 MiB for each matrix. kResourceExhausted unless weights, workspace and the
// least pages fit.
Status check_device_memory(const DeviceMemoryNeeds& needs, int64_t free_bytes);

// The number of pages, once weights and workspace are in place, from what is free then without the reserve.
// kResourceExhausted when that is less than was asked for, or none.
Result<int64_t> plan_kv_pages(const DeviceMemoryNeeds& needs, int64_t free_bytes);

}  // namespace vayu::model
