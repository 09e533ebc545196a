// Single keys of many blocks, brought together as blocks of 64, so that they go through the same
// loops, and get the same bits, as keys that lie in a block. Owns a block's memory, which it keeps.
// One thread at a time.
#ifndef ATTND_ENGINE_KDE_GATHERED_KEYS_H_
#define ATTND_ENGINE_KDE_GATHERED_KEYS_H_

#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/exact/key_value_state.h"

namespace attnd::engine {

class GatheredKeys {
 public:
  void Reset(std::int64_t key_dim, std::int64_t padded_value_dim);

  // Forgets the keys.
  void Clear() { count_ = 0; }
  // Copies row `row` of `from` to the next place; there is room for 64.
  void Add(const BlockView<float>& from, std::int64_t row);

  // Asks for a key and its value, a cache line for every component, before they are added: what is
  // gathered lies anywhere in memory.
  void Prefetch(const BlockView<float>& from, std::int64_t row) const;

  std::int64_t count() const { return count_; }
  // The keys so far as a block; the places after them hold finite numbers.
  BlockView<float> block() const;

 private:
  std::int64_t key_dim_ = 0;
  std::int64_t padded_value_dim_ = 0;
  std::int64_t count_ = 0;
  AlignedBuffer<float> memory_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_GATHERED_KEYS_H_
