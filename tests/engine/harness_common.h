// What the harnesses of both engines and the tests beside them share.
#ifndef ATTND_TESTS_ENGINE_HARNESS_COMMON_H_
#define ATTND_TESTS_ENGINE_HARNESS_COMMON_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/block.h"

namespace attnd::engine {

inline std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Unlike ==, tells -0 from 0 and finds a NaN equal to itself.
template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Rows [first, first + count) of the answers to `queries` queries.
template <typename T>
std::vector<T> SliceRows(const std::vector<T>& v, std::int64_t first, std::int64_t count,
                         std::int64_t queries) {
  const std::int64_t row = static_cast<std::int64_t>(v.size()) / queries;
  return {v.begin() + first * row, v.begin() + (first + count) * row};
}

// Bit i: token first + i is not masked. `mask` is by token, 0: masked; count is at most 64.
inline RowMask ValidRows(const std::vector<std::uint8_t>& mask, std::int64_t first,
                         std::int64_t count) {
  RowMask valid = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (mask[Size(first + i)] != 0) valid |= RowMask{1} << i;
  }
  return valid;
}

}  // namespace attnd::engine

#endif  // ATTND_TESTS_ENGINE_HARNESS_COMMON_H_
