#include "engine/linear/linear_engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/linear/attend_plan.h"
#include "engine/linear/denominator_guard.h"
#include "engine/linear/fold.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Numbers of S and Z of a layer. Sealing a block is one piece of work: at this size about 10 ms,
// at the sizes of language models (64 heads of 128) about 1.
constexpr std::int64_t kMaxSums = 1 << 23;

LinearState& AsLinear(SealedState& state) { return static_cast<LinearState&>(state); }
const LinearState& AsLinear(const SealedState& state) {
  return static_cast<const LinearState&>(state);
}

absl::Status Overflow(const char* what, std::int64_t head) {
  return absl::OutOfRangeError(absl::StrCat(what, ": features or sums of kv-head ", head,
                                            " leave the range of f32 (limit 3.4e38 in magnitude)"));
}

}  // namespace

LinearEngine::LinearEngine(const LayerShape& shape, const LinearConfig& config,
                           std::unique_ptr<const FeatureMap> map)
    : shape_(shape),
      config_(config),
      map_(std::move(map)),
      dims_(map_->feature_dim(), shape.value_dim) {}

void LinearEngine::EncodeHead(const KeyRows& rows, std::int64_t head, float* features,
                              std::int32_t* exponents, Scratch& scratch) const {
  const std::int64_t ld = dims_.features;
  const std::int64_t c = map_->feature_dim();
  std::array<std::int64_t, kBlockTokens> positions;
  if (map_->positional()) {
    std::iota(positions.begin(), positions.begin() + rows.count, rows.block + rows.first);
  }
  map_->MapKeys({rows.keys + head * shape_.key_dim, shape_.key_row(), rows.count, head,
                 map_->positional() ? positions.data() : nullptr},
                {features, ld, exponents}, scratch);
  for (std::int64_t i = 0; c < ld && i < rows.count; ++i) {
    std::fill(features + i * ld + c, features + (i + 1) * ld, 0.0F);
  }
  // After the map: phi(0) = 1 for elu + 1, so the zero rows of masked tokens would count.
  for (RowMask masked = ~rows.valid & FirstRows(rows.count); masked != 0; masked &= masked - 1) {
    std::fill_n(features + std::countr_zero(masked) * ld, ld, 0.0F);
  }
}

void LinearEngine::EncodeKeys(const KeyRows& rows, float* features, std::int32_t* exponents,
                              Scratch& scratch) const {
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    const std::int64_t row = head * kBlockTokens + rows.first;
    EncodeHead(rows, head, features + row * dims_.features,
               scaled_features() ? exponents + row : nullptr, scratch);
  }
}

std::shared_ptr<SealedState> LinearEngine::NewState() const {
  return std::make_shared<LinearState>(shape_.kv_heads, dims_);
}

std::shared_ptr<SealedState> LinearEngine::Clone(const SealedState& state) const {
  return std::make_shared<LinearState>(AsLinear(state));
}

absl::Status LinearEngine::Seal(SealedState& state, std::int64_t sealed_tokens,
                                std::span<const Block> blocks, Scratch& scratch) const {
  LinearState& sealed = AsLinear(state);
  if (!sealed.has_sums()) sealed.AllocateSums();
  const Scratch::Frame frame(scratch);
  float* encoded = scratch.Take(kBlockTokens * dims_.features);
  std::array<std::int32_t, kBlockTokens> encoded_exponents;
  // Head by head, so that one head's totals stay in the cache over all blocks.
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const Block& block = blocks[b];
      const std::int64_t first = sealed_tokens + static_cast<std::int64_t>(b) * kBlockTokens;
      HeadRows rows = {kBlockTokens,       encoded,     block.values + head * shape_.value_dim,
                       shape_.value_row(), block.valid, nullptr};
      if (block.features != nullptr) {
        rows.features = block.features + head * kBlockTokens * dims_.features;
        if (scaled_features()) rows.exponents = block.exponents + head * kBlockTokens;
      } else {
        EncodeHead({block.keys, block.valid, first, 0, kBlockTokens}, head, encoded,
                   encoded_exponents.data(), scratch);
        if (scaled_features()) rows.exponents = encoded_exponents.data();
      }
      if (!FoldRows(dims_, rows, head, sealed, scratch)) {
        return Overflow(absl::StrCat("tokens ", first, " to ", first + kBlockTokens - 1).c_str(),
                        head);
      }
    }
    RoundSummary(dims_, head, sealed);
  }
  for (const Block& block : blocks) sealed.AddUnmasked(std::popcount(block.valid));
  return absl::OkStatus();
}

absl::Status LinearEngine::CheckTail(const SealedState& state, const TailView& tail,
                                     Scratch& scratch) const {
  if (tail.rows == 0) return absl::OkStatus();
  const auto& sealed = AsLinear(state);
  const float max_value = MaxAbs(tail.tail->values.data(), tail.rows * shape_.value_row());
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    const std::int64_t row = head * kBlockTokens;
    const HeadRows rows = {tail.rows,
                           tail.tail->features.data() + row * dims_.features,
                           tail.tail->values.data() + head * shape_.value_dim,
                           shape_.value_row(),
                           tail.valid,
                           scaled_features() ? tail.tail->exponents.data() + row : nullptr};
    if (SurelyCanFoldRows(dims_, rows, max_value, head, sealed)) continue;
    if (!CanFoldRows(dims_, rows, head, sealed, scratch)) {
      return Overflow("the last tokens", head);
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<AttendPlan> LinearEngine::NewPlan() const {
  return std::make_unique<LinearAttendPlan>(*this);
}

std::int64_t LinearEngine::fixed_bytes() const {
  const std::int64_t state = dims_.totals() * 8 + dims_.summary() * 4 + 12;
  const std::int64_t tail =
      kBlockTokens * 4 *
      (dims_.features + shape_.key_dim + shape_.value_dim + (scaled_features() ? 1 : 0));
  return static_cast<std::int64_t>(sizeof(LinearState)) + shape_.kv_heads * (state + tail);
}

absl::StatusOr<std::unique_ptr<const Engine>> MakeLinearEngine(const LayerShape& shape,
                                                               const LinearConfig& config) {
  if (absl::Status status = ValidateGuard(config); !status.ok()) return status;
  FeatureMapOr map = MakeFeatureMap(config.feature_map, shape);
  if (!map.ok()) return map.status();
  if ((*map)->sign() == KernelSign::kSigned && config.normalized) {
    return absl::InvalidArgumentError(
        absl::StrCat("normalization is NORMALIZED; it must be UNNORMALIZED for ",
                     config.feature_map.name, ", whose denominator has no fixed sign"));
  }
  const std::int64_t sums =
      shape.kv_heads * LinearDims((*map)->feature_dim(), shape.value_dim).totals();
  if (sums > kMaxSums) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_heads * c * (value_dim + 1) is ", sums, "; it must be at most ", kMaxSums,
                     " (c = ", (*map)->feature_dim(), " features a key)"));
  }
  return std::make_unique<const LinearEngine>(shape, config, *std::move(map));
}

}  // namespace attnd::engine
