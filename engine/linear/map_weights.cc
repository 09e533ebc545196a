#include "engine/linear/map_weights.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/gemm.h"
#include "engine/simd/maps.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kMaxSize = 4096;
constexpr std::int64_t kMaxFeatures = 65'536;

absl::Status CheckRange(const char* field, std::int64_t value, std::int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must be 1 to ", most));
}

// Of floats in a cache line.
constexpr std::int64_t kTile = static_cast<std::int64_t>(kBufferAlignment / sizeof(float));

// Up to kTile rows of d numbers, to the columns of an array whose rows are `stride` apart.
void StoreRows(const float* rows, std::int64_t count, std::int64_t d, float* to,
               std::int64_t stride) {
  // By way of a tile: where d is a power of two all rows share one set of the cache, which has
  // fewer places than they are.
  alignas(kBufferAlignment) std::array<float, kTile * kTile> tile;
  for (std::int64_t first = 0; first < d; first += kTile) {
    const std::int64_t width = std::min(kTile, d - first);
    for (std::int64_t r = 0; r < count; ++r) {
      std::copy_n(rows + r * d + first, width, tile.data() + r * kTile);
    }
    for (std::int64_t k = 0; k < width; ++k) {
      float* const line = to + (first + k) * stride;
      const float* const column = tile.data() + k;
      for (std::int64_t r = 0; r < count; ++r) line[r] = column[r * kTile];
    }
  }
}

std::int64_t Columns(const MapWeightsShape& shape) {
  return RoundUp(shape.features, kGemmColumnMultiple);
}

}  // namespace

std::int64_t MapWeightsShape::numbers() const {
  return kv_heads * features * (key_dim + (key_bias ? 1 : 0)) +
         query_heads * features * (key_dim + (query_bias ? 1 : 0));
}

std::int64_t MapWeightsShape::bytes(std::int64_t count) const {
  const std::int64_t row_bytes = Columns(*this) * static_cast<std::int64_t>(sizeof(float));
  std::int64_t sum = static_cast<std::int64_t>(sizeof(MapWeights)) +
                     (kv_heads + query_heads) * static_cast<std::int64_t>(sizeof(MapWeights::Head));
  // `rows` of m numbers of each of `heads` heads.
  const auto add = [&](std::int64_t heads, std::int64_t rows) {
    const std::int64_t head_numbers = rows * features;
    const std::int64_t here = std::min(count, heads * head_numbers);
    sum += (here + head_numbers - 1) / head_numbers * rows * row_bytes;
    count -= here;
  };
  add(kv_heads, key_dim);
  if (key_bias) add(kv_heads, 1);
  add(query_heads, key_dim);
  if (query_bias) add(query_heads, 1);
  return sum;
}

absl::Status CheckMapWeightsShape(const MapWeightsShape& shape) {
  absl::Status status = CheckRange("kv_heads", shape.kv_heads, kMaxSize);
  status.Update(CheckRange("query_heads", shape.query_heads, kMaxSize));
  status.Update(CheckRange("key_dim", shape.key_dim, kMaxSize));
  status.Update(CheckRange("features", shape.features, kMaxFeatures));
  if (!status.ok()) return status;
  if (shape.query_heads % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("query_heads is ", shape.query_heads,
                                                   "; it must be a multiple of kv_heads, which is ",
                                                   shape.kv_heads));
  }
  // Multiply-adds of a row: those of a block's 64 take about a millisecond.
  constexpr std::int64_t kMaxProjection = 1 << 20;
  if (shape.features * shape.key_dim > kMaxProjection) {
    return absl::InvalidArgumentError(absl::StrCat("features * key_dim is ",
                                                   shape.features * shape.key_dim,
                                                   "; it must be at most ", kMaxProjection));
  }
  return absl::OkStatus();
}

MapWeights::MapWeights(const MapWeightsShape& shape)
    : shape_(shape),
      key_heads_(static_cast<std::size_t>(shape.kv_heads)),
      query_heads_(static_cast<std::size_t>(shape.query_heads)) {}

std::int64_t MapWeights::columns() const { return Columns(shape_); }

MapWeightsBuilder::MapWeightsBuilder(const MapWeightsShape& shape)
    : map_(new MapWeights(shape)), numbers_(shape.numbers()) {
  sections_.push_back({&map_->key_heads_, false});
  if (shape.key_bias) sections_.push_back({&map_->key_heads_, true});
  sections_.push_back({&map_->query_heads_, false});
  if (shape.query_bias) sections_.push_back({&map_->query_heads_, true});
}

// In one head of the section that is being filled.
std::int64_t MapWeightsBuilder::HeadNumbers() const {
  return shape().features * (sections_[section_].bias ? 1 : shape().key_dim);
}

absl::Status MapWeightsBuilder::Add(const float* numbers, std::int64_t count) {
  if (!AllFinite(numbers, count)) {
    return absl::InvalidArgumentError(absl::StrCat("numbers ", received_, " to ",
                                                   received_ + count - 1,
                                                   " of the map hold a NaN or infinity"));
  }
  received_ += count;
  while (count > 0) {
    const std::int64_t here = std::min(count, HeadNumbers() - at_);
    Store(numbers, here);
    numbers += here;
    count -= here;
    at_ += here;
    if (at_ < HeadNumbers()) break;
    at_ = 0;
    if (++head_ < sections_[section_].heads->size()) continue;
    head_ = 0;
    if (++section_ == sections_.size()) break;
  }
  return absl::OkStatus();
}

// Numbers at_ and on of the current head.
void MapWeightsBuilder::Store(const float* numbers, std::int64_t count) {
  const std::int64_t columns = map_->columns();
  MapWeights::Head& head = (*sections_[section_].heads)[head_];
  if (sections_[section_].bias) {
    if (at_ == 0) head.bias = AlignedBuffer<float>(columns);
    std::copy_n(numbers, count, head.bias.data() + at_);
    return;
  }
  const std::int64_t d = shape().key_dim;
  // Nobody reads a head before it is complete, and to clear one of 16 MiB takes milliseconds.
  if (at_ == 0) head.weights = AlignedBuffer<float>::Uninitialized(d * columns);
  StoreWeights(numbers, count, head.weights.data());
  if (at_ + count < HeadNumbers()) return;
  for (std::int64_t k = 0; k < d; ++k) {
    std::fill(head.weights.data() + k * columns + shape().features,
              head.weights.data() + (k + 1) * columns, 0.0F);
  }
}

// Transposes numbers at_ and on of a head into W_h^T [d, columns]: tile by tile, so that a cache
// line is written once and not by each of the rows that share it. (Row by row, 1 MiB took 3 to
// 11 ms where d or m is large.)
void MapWeightsBuilder::StoreWeights(const float* numbers, std::int64_t count, float* weights) {
  const std::int64_t columns = map_->columns();
  const std::int64_t d = shape().key_dim;
  std::int64_t row = at_ / d;
  std::int64_t k = at_ % d;
  const auto store_some = [&](std::int64_t some) {
    for (const float* const end = numbers + some; numbers < end; ++numbers, ++k) {
      weights[k * columns + row] = *numbers;
    }
    count -= some;
    if (k < d) return;
    k = 0;
    ++row;
  };
  if (k > 0) store_some(std::min(count, d - k));
  while (count >= d) {
    // To the next line's beginning, so that all tiles but the first and the last are whole.
    const std::int64_t rows = std::min(count / d, kTile - row % kTile);
    StoreRows(numbers, rows, d, weights + row, columns);
    row += rows;
    numbers += rows * d;
    count -= rows * d;
  }
  if (count > 0) store_some(count);
}

std::shared_ptr<const MapWeights> MapWeightsBuilder::Finish() { return std::move(map_); }

}  // namespace attnd::engine
