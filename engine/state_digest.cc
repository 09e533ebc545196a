#include "engine/state_digest.h"

namespace attnd::engine {
namespace {

Digest OfRows(const float* rows, std::int64_t count, std::int64_t row) {
  if (row == 0) return {};
  return DigestOf(rows, count * row * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace

Digest ChainBlock(const Digest& before, const LayerShape& shape, const TailLayout& layout,
                  const Block& block, std::int64_t rows) {
  // Without padding, so that it is hashed as it lies in memory.
  struct Link {
    Digest before;
    std::int64_t rows;
    RowMask valid;
    Digest keys;
    Digest values;
    Digest log_decays;
    Digest rates;
  };
  static_assert(sizeof(Link) == 5 * sizeof(Digest) + 2 * sizeof(std::uint64_t));
  const Link link = {before,
                     rows,
                     block.valid,
                     OfRows(block.keys, rows, shape.key_row()),
                     OfRows(block.values, rows, shape.value_row()),
                     OfRows(block.log_decays, rows, layout.log_decays),
                     OfRows(block.rates, rows, layout.rates)};
  return DigestOf(&link, sizeof link);
}

}  // namespace attnd::engine
