#include "engine/kde/kde_engine.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/exact/segment.h"
#include "engine/kde/index_span.h"
#include "engine/kde/kde_plan.h"
#include "engine/kde/kde_state.h"
#include "engine/kde/upkeep_schedule.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

// In mode AUTO the index is not asked below this context, where building it costs more than it
// saves, and rows that would read more than this share of the keys read all of them.
constexpr std::int64_t kLeastAutoTokens = 4096;
constexpr float kMostAutoShare = 0.3F;

class KdeEngine final : public Engine {
 public:
  KdeEngine(const LayerShape& shape, const KdeConfig& config) : shape_(shape), config_(config) {}

  const char* name() const override { return "kde"; }
  const LayerShape& shape() const override { return shape_; }
  PositionUse position_use() const override { return PositionUse::kOptional; }
  bool approximate() const override { return true; }

  void RoundToStorage(float* /*values*/, std::int64_t /*count*/) const override {}
  bool rounds_storage() const override { return false; }

  std::shared_ptr<SealedState> NewState() const override {
    return std::make_shared<KdeState>(shape_);
  }
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override {
    return std::make_shared<KdeState>(static_cast<const KdeState&>(state));
  }
  absl::Status Seal(SealedState& state, std::int64_t /*sealed_tokens*/,
                    std::span<const Block> blocks, Scratch& scratch) const override {
    return static_cast<KdeState&>(state).Append(blocks, scratch);
  }
  // Sealing copies rows, and no finite key or value makes an index fail.
  absl::Status CheckTail(const SealedState& /*state*/, const TailView& /*tail*/,
                         Scratch& /*scratch*/) const override {
    return absl::OkStatus();
  }

  std::unique_ptr<AttendPlan> NewPlan() const override {
    const bool automatic = config_.mode == KdeConfig::Mode::kAuto;
    return std::make_unique<KdePlan>(
        shape_, config_.accuracy,
        automatic ? ExactRule{kLeastAutoTokens, kMostAutoShare} : ExactRule{});
  }
  std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                         std::int64_t top_k) const override {
    return KdePlan::Bytes(shape_, tokens, queries, top_k);
  }

  std::int64_t fixed_bytes() const override {
    // A thousand tokens or so are raw blocks; they count as tokens.
    return static_cast<std::int64_t>(sizeof(KdeState)) + Tail::Bytes(shape_, {}) +
           shape_.kv_heads * ValueMoments::Bytes(shape_.value_dim);
  }
  // Of the smallest spans, whose summaries weigh most.
  std::int64_t bytes_per_token() const override {
    const std::int64_t bytes =
        IndexSpan::Bytes(BlockLayout(shape_), {kBlockTokens, kLeastMainTokens - kBlockTokens});
    return (bytes + kLeastMainTokens - kBlockTokens - 1) / (kLeastMainTokens - kBlockTokens);
  }
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override {
    return Tail::Bytes(shape_, {}) + (count + kBlockTokens) * bytes_per_token() +
           KdeState::UpkeepBytes(BlockLayout(shape_), position, position + count);
  }
  // About the square root of the context, with the newest tokens.
  std::int64_t RowsRead(std::int64_t position) const override {
    return position <= kLeastAutoTokens ? RoundUp(position, kBlockTokens)
                                        : kLeastAutoTokens + position / kBlockTokens;
  }

 private:
  const LayerShape shape_;
  const KdeConfig config_;
};

absl::Status CheckConfig(const KdeConfig& config) {
  const Accuracy& accuracy = config.accuracy;
  if (!(accuracy.target_error >= 0.0 && std::isfinite(accuracy.target_error))) {
    return absl::InvalidArgumentError(absl::StrCat("kde.accuracy.target_error is ",
                                                   accuracy.target_error,
                                                   "; it must be at least 0 and finite"));
  }
  if (accuracy.max_keys < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kde.accuracy.max_keys is ", accuracy.max_keys, "; it must be at least 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Engine>> MakeKdeEngine(const LayerShape& shape,
                                                            const KdeConfig& config) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  if (config.mode != KdeConfig::Mode::kAuto && config.mode != KdeConfig::Mode::kIndex) {
    return absl::InvalidArgumentError(
        "kde.mode is neither AUTO nor INDEX, which are offered so far");
  }
  return std::make_unique<KdeEngine>(shape, config);
}

}  // namespace attnd::engine
