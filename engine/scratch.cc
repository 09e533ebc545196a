#include "engine/scratch.h"

#include <algorithm>

#include "engine/tensor.h"

namespace attnd::engine {
namespace {
constexpr std::int64_t kFloatsPerLine = 16;
constexpr std::int64_t kFirstChunkFloats = 1 << 16;
}  // namespace

float* Scratch::Take(std::int64_t count) {
  const std::int64_t rounded = RoundUp(count, kFloatsPerLine);
  while (chunk_ < chunks_.size() && chunks_[chunk_].size() - used_ < rounded) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const std::int64_t last = chunks_.empty() ? 0 : chunks_.back().size();
    chunks_.push_back(
        AlignedBuffer<float>::Uninitialized(std::max({kFirstChunkFloats, 2 * last, rounded})));
    used_ = 0;
  }
  float* taken = chunks_[chunk_].data() + used_;
  used_ += rounded;
  return taken;
}

}  // namespace attnd::engine
