#include <cstdint>

#include "engine/simd/convert.h"
#include "engine/simd/one_query.h"

namespace attnd::engine {

void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   std::int64_t first, float* keys_t) {
  for (std::int64_t j = 0; j < count; ++j) {
    for (std::int64_t p = 0; p < d; ++p)
      keys_t[p * kBlockTokens + first + j] = keys[j * stride + p];
  }
}

void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   std::int64_t first, std::uint16_t* keys_t) {
  constexpr std::int64_t kChunk = 64;
  std::uint16_t rounded[kChunk];
  for (std::int64_t j = 0; j < count; ++j) {
    for (std::int64_t p = 0; p < d; p += kChunk) {
      const std::int64_t size = d - p < kChunk ? d - p : kChunk;
      F32ToBf16(keys + j * stride + p, rounded, size);
      for (std::int64_t i = 0; i < size; ++i)
        keys_t[(p + i) * kBlockTokens + first + j] = rounded[i];
    }
  }
}

}  // namespace attnd::engine
