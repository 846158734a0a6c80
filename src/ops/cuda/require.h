// VAYU_CHECK for .cu files: nvcc does not compile the fmt of Debian 12, so they include nothing of base/.
#pragma once

#include <cstdio>
#include <cstdlib>

// An impossible state: a programming error of the caller. `text` says what was expected.
#define VAYU_REQUIRE(condition, text)                                                              \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", __FILE__, __LINE__, #condition, text); \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)
