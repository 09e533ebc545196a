#include "engine/exact/segment.h"

#include <algorithm>

#include "engine/gemm.h"

namespace attnd::engine {

BlockLayout::BlockLayout(const LayerShape& shape)
    : kv_heads(shape.kv_heads),
      key_dim(shape.key_dim),
      value_dim(shape.value_dim),
      padded_value_dim(RoundUp(shape.value_dim, kGemmColumnMultiple)) {}

template <typename Element>
Segment<Element>::Segment(const BlockLayout& layout, std::int64_t blocks, std::int64_t claimed)
    : blocks_(blocks),
      block_elements_(layout.elements()),
      data_(AlignedBuffer<Element>::Uninitialized(layout.kv_heads * blocks * layout.elements())),
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
