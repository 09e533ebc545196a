#include "engine/linear/block_rows.h"

namespace attnd::engine {
namespace {

const std::int32_t* TailExponents(const LinearLayer& layer, const Tail& tail, std::int64_t head) {
  return layer.map->scaled() ? tail.exponents.data() + head * kBlockTokens : nullptr;
}

const float* TailFeatures(const LinearLayer& layer, const Tail& tail, std::int64_t head) {
  return tail.features.data() + head * kBlockTokens * layer.dims.features;
}

}  // namespace

HeadRows SealedRows(const LinearLayer& layer, const Block& block, std::int64_t position,
                    std::int64_t head, MappedRows& mapped, Scratch& scratch) {
  const LayerShape& shape = layer.shape;
  HeadRows rows = {kBlockTokens,      mapped.features, block.values + head * shape.value_dim,
                   shape.value_row(), block.valid,     nullptr};
  if (block.encoded != nullptr) {
    rows.features = TailFeatures(layer, *block.encoded, head);
    rows.exponents = TailExponents(layer, *block.encoded, head);
  } else {
    MapKeyRows(layer, {block.keys, kBlockTokens, position, block.valid}, head, mapped.features,
               mapped.exponents.data(), scratch);
    if (layer.map->scaled()) rows.exponents = mapped.exponents.data();
  }
  return rows;
}

HeadRows OpenRows(const LinearLayer& layer, const TailView& tail, std::int64_t head) {
  const LayerShape& shape = layer.shape;
  return {tail.rows,
          TailFeatures(layer, *tail.tail, head),
          tail.tail->values.data() + head * shape.value_dim,
          shape.value_row(),
          tail.valid,
          TailExponents(layer, *tail.tail, head)};
}

}  // namespace attnd::engine
