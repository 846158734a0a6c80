// Identifiers every folder shares.
#pragma once

#include <cstdint>

namespace vayu {

using TokenId = int32_t;
using PageId = int32_t;      // a KV page; addressed only by number above the ops layer
using RequestId = uint64_t;  // unique in one process
using SeqId = uint64_t;      // one of the n answers of a request; unique in one process

constexpr TokenId kNoToken = -1;

}  // namespace vayu
