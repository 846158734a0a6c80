// FlashInfer's Hopper attention behind a C interface, so that bench/peers.py can call it through ctypes with the
// pointers of PyTorch's tensors: its Python package is not needed where it runs. Shapes as in bench/peers.py; pages of
// page_size tokens.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

extern "C" {

// Lengths are known to the host, as they are in an engine's step: plan once, run as often as wanted on the same
// lengths.
struct PeerBatch {
  const int32_t* qo_indptr_host;  // rows + 1: first query token of a row
  const int32_t*
      kv_indptr_host;          // rows + 1: first page of a row (of its table), or first token where there are no pages
  const int32_t* kv_len_host;  // rows
  const int32_t* qo_indptr;    // the same on the device
  const int32_t* kv_indptr;
  const int32_t* last_page_len;  // rows: tokens of the last page
  int32_t rows, page_size, q_heads, kv_heads;
  int32_t head_major;  // pages of (heads, tokens, dim) instead of (tokens, heads, dim)
  float scale;
};

struct PeerTensors {
  const void* q;  // (tokens, q_heads, dim), BF16; latent attention: (tokens, heads, 512)
  const void* q_rope;
  const void* k;  // pages, or latents of them; rows where there are no pages
  const void* v;  // the same, or rotated keys
  const int32_t* table;
  void* out;
};

struct PeerWorkspace {
  void* floats;
  int64_t float_bytes;
  void* ints;
  void* pinned_ints;  // host memory of the same size
  int64_t int_bytes;
};

const char* peer_error();  // of the last call that returned null or nonzero
}

namespace peer {

inline thread_local std::string last_error;

// 0, or 1 with the reason in last_error.
template <class Call>
int checked(Call&& call) {
  try {
    const cudaError_t status = call();
    if (status == cudaSuccess) return 0;
    last_error = cudaGetErrorString(status);
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

}  // namespace peer
