#include "engine/exact/segment.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>

#include "engine/gemm.h"

namespace attnd::engine {
namespace {

// Contents undefined. Throws std::bad_alloc.
void* AllocateBlocks(std::int64_t bytes) {
  const bool large = bytes >= kLargePageBytes;
  const std::size_t alignment = large ? kLargePageBytes : kBufferAlignment;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, static_cast<std::size_t>(bytes)) != 0) {
    throw std::bad_alloc();
  }
  if (large) {
    // Advice: where the kernel does not take it, reading is slower.
    const std::int64_t whole = bytes / kLargePageBytes * kLargePageBytes;
    static_cast<void>(madvise(memory, static_cast<std::size_t>(whole), MADV_HUGEPAGE));
  }
  return memory;
}

}  // namespace

BlockLayout::BlockLayout(const LayerShape& shape)
    : kv_heads(shape.kv_heads),
      key_dim(shape.key_dim),
      value_dim(shape.value_dim),
      padded_value_dim(RoundUp(shape.value_dim, kGemmColumnMultiple)) {}

template <typename Element>
Segment<Element>::Segment(const BlockLayout& layout, std::int64_t blocks, std::int64_t claimed)
    : blocks_(blocks),
      block_elements_(layout.elements()),
      data_bytes_(layout.kv_heads * blocks * layout.elements() *
                  static_cast<std::int64_t>(sizeof(Element))),
      data_(static_cast<Element*>(AllocateBlocks(data_bytes_))),
      valid_(blocks),
      claimed_(claimed) {}

template <typename Element>
Segment<Element>::Segment(const BlockLayout& layout, const Segment& other, std::int64_t count,
                          std::int64_t claimed)
    : Segment(layout, other.blocks_, claimed) {
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    std::copy_n(other.block(head, 0), count * block_elements_, block(head, 0));
  }
  std::copy_n(other.valid_.data(), count, valid_.data());
}

template class Segment<float>;
template class Segment<std::uint16_t>;

}  // namespace attnd::engine
