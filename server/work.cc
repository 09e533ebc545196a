#include "server/work.h"

#include <algorithm>

#include "engine/tensor.h"

namespace attnd::server {
namespace {

// A float that passes through memory a few times takes as long as this many multiply-adds; one that
// is only read, as keys and values are by few queries, as kPerFloatRead (25 GB/s).
constexpr Operations kPerFloat = 16;
constexpr Operations kPerFloatRead = 2;
// What a tile of up to 192 query rows of one head costs whatever its size: three products' calls
// and the copy of the open block.
constexpr Operations kPerTile = 1 << 13;
constexpr std::int64_t kTileRows = 192;
// Moves of an insertion into a row's top_k, per query row, head and place.
constexpr Operations kPerTopKey = Operations{64} * 50;

// Floats of keys and values that are checked, digested and folded in well under a millisecond where
// a map has as many features as a key has numbers; and what maps with many more may compute.
constexpr std::int64_t kQuantumFloats = 1 << 17;
constexpr Operations kQuantumOperations = 1 << 23;

Operations Product(Operations a, Operations b) {
  constexpr Operations kMax = Operations{1} << 58;
  Operations product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMax : std::min(product, kMax);
}

}  // namespace

Operations AttendOperations(const engine::Engine& engine, std::int64_t position,
                            std::int64_t queries, std::int64_t top_k) {
  const engine::LayerShape& shape = engine.shape();
  const std::int64_t rows = engine.RowsRead(position);
  const std::int64_t columns = shape.key_dim + engine::RoundUp(shape.value_dim, 16);
  const Operations arithmetic =
      Product(Product(queries, shape.query_heads), rows * columns + engine.map_operations());
  const Operations reading = Product(rows, shape.kv_heads * columns * kPerFloatRead);
  const std::int64_t tiles = Product(queries, shape.group_size()) / kTileRows + 1;
  return std::max(arithmetic, reading) + Product(shape.kv_heads * tiles, kPerTile) +
         Product(Product(queries, shape.query_heads), top_k * kPerTopKey);
}

Operations AppendOperations(const engine::Engine& engine, std::int64_t position,
                            std::int64_t tokens) {
  const engine::LayerShape& shape = engine.shape();
  const std::int64_t sums = shape.kv_heads * engine.feature_dim() * shape.value_dim;
  const Operations maps = shape.kv_heads * engine.map_operations();
  Operations operations =
      Product(tokens, kPerFloat * (shape.key_row() + shape.value_row()) + sums + maps);
  const engine::TailLayout layout = engine.tail_layout();
  operations += Product(tokens, kPerFloat * (layout.log_decays + layout.rates));
  // A delta rule reads for each token what is there: S and the open block.
  operations += Product(
      tokens, shape.kv_heads * layout.updates * (layout.features + 2 * engine::kBlockTokens));
  // The token that opens a block seals the one before, and goes over the sums for that.
  const bool seals = position % engine::kBlockTokens + tokens > engine::kBlockTokens ||
                     (position > 0 && position % engine::kBlockTokens == 0);
  if (seals) operations += Product(sums, engine::kBlockTokens + kPerFloat * engine.seal_passes());
  if (position < 0 || position > kMostPosition) return operations;
  return operations + engine.UpkeepOperations(position, tokens);
}

std::int64_t AppendQuantumTokens(const engine::Engine& engine) {
  if (engine.prepares_seals()) return engine::kBlockTokens;
  const engine::LayerShape& shape = engine.shape();
  const std::int64_t block_floats = (shape.key_row() + shape.value_row()) * engine::kBlockTokens;
  const Operations block_operations = AppendOperations(engine, 0, engine::kBlockTokens);
  const std::int64_t blocks =
      std::min(kQuantumFloats / block_floats, kQuantumOperations / block_operations);
  return std::max<std::int64_t>(blocks, 1) * engine::kBlockTokens;
}

}  // namespace attnd::server
