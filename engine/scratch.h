// Working memory of one thread: a stack of float arrays that keeps its memory between uses, so that
// a warmed-up thread computes without touching the allocator.
//
// Not thread-safe: one Scratch belongs to one thread. Take() is valid until the enclosing Frame
// ends.
#ifndef ATTND_ENGINE_SCRATCH_H_
#define ATTND_ENGINE_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"

namespace attnd::engine {

class Scratch {
 public:
  // Arrays taken while a Frame is alive are given back when it ends. Frames nest.
  class Frame {
   public:
    explicit Frame(Scratch& scratch)
        : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_) {}
    ~Frame() {
      scratch_.chunk_ = chunk_;
      scratch_.used_ = used_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    std::size_t chunk_;
    std::int64_t used_;
  };

  // `count` floats on a 64-byte boundary; contents undefined.
  float* Take(std::int64_t count);
  double* TakeF64(std::int64_t count) { return reinterpret_cast<double*>(Take(2 * count)); }
  std::int32_t* TakeI32(std::int64_t count) { return reinterpret_cast<std::int32_t*>(Take(count)); }

 private:
  std::vector<AlignedBuffer<float>> chunks_;
  std::size_t chunk_ = 0;  // the chunk that is being filled
  std::int64_t used_ = 0;  // floats used of it
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SCRATCH_H_
