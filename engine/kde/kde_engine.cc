#include "engine/kde/kde_engine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/exact/exact_engine.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

// Answers from the exact engine's plan, with estimates that say so.
class ExactPath final : public AttendPlan {
 public:
  ExactPath(const LayerShape& shape, std::unique_ptr<AttendPlan> plan)
      : shape_(shape), plan_(std::move(plan)) {}

  void Reset(const QueryGroup& group, const AnswerView& answer) override {
    group_ = group;
    answer_ = answer;
    if (answer.estimates.log_normalizer_bounds != nullptr && answer.log_normalizers == nullptr) {
      log_normalizers_.resize(static_cast<std::size_t>(group.count * shape_.query_heads));
      answer_.log_normalizers = log_normalizers_.data();
    }
    plan_->Reset(group, answer_);
  }

  std::int64_t chains() const override { return plan_->chains(); }
  bool Run(std::int64_t chain, Scratch& scratch) override { return plan_->Run(chain, scratch); }

  void Finish(Scratch& scratch) override {
    plan_->Finish(scratch);
    const EstimateView& estimates = answer_.estimates;
    for (std::int64_t row = 0; row < group_.count * shape_.query_heads; ++row) {
      const std::int64_t cut = group_.cut(row / shape_.query_heads);
      const std::int64_t keys = group_.sealed_tokens + std::min(cut, group_.tail.rows);
      if (estimates.errors != nullptr) estimates.errors[row] = 0.0F;
      if (estimates.log_normalizer_bounds != nullptr) {
        std::fill_n(estimates.log_normalizer_bounds + 2 * row, 2, answer_.log_normalizers[row]);
      }
      if (estimates.exact_masses != nullptr) estimates.exact_masses[row] = 1.0F;
      if (estimates.keys_evaluated != nullptr) estimates.keys_evaluated[row] = keys;
      if (estimates.paths != nullptr) {
        estimates.paths[row] = static_cast<std::uint8_t>(AnswerPath::kExact);
      }
      if (estimates.calibrated != nullptr) estimates.calibrated[row] = 1;
    }
  }

 private:
  const LayerShape shape_;
  std::unique_ptr<AttendPlan> plan_;
  QueryGroup group_;
  AnswerView answer_;
  std::vector<float> log_normalizers_;
};

class KdeEngine final : public Engine {
 public:
  KdeEngine(const LayerShape& shape, std::unique_ptr<const Engine> exact)
      : shape_(shape), exact_(std::move(exact)) {}

  const char* name() const override { return "kde"; }
  const LayerShape& shape() const override { return shape_; }
  PositionUse position_use() const override { return PositionUse::kOptional; }
  bool approximate() const override { return true; }

  void RoundToStorage(float* /*values*/, std::int64_t /*count*/) const override {}
  bool rounds_storage() const override { return false; }

  std::shared_ptr<SealedState> NewState() const override { return exact_->NewState(); }
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override {
    return exact_->Clone(state);
  }
  absl::Status Seal(SealedState& state, std::int64_t sealed_tokens, std::span<const Block> blocks,
                    Scratch& scratch) const override {
    return exact_->Seal(state, sealed_tokens, blocks, scratch);
  }
  absl::Status CheckTail(const SealedState& state, const TailView& tail,
                         Scratch& scratch) const override {
    return exact_->CheckTail(state, tail, scratch);
  }

  std::unique_ptr<AttendPlan> NewPlan() const override {
    return std::make_unique<ExactPath>(shape_, exact_->NewPlan());
  }
  std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                         std::int64_t top_k) const override {
    return exact_->PlanBytes(tokens, queries, top_k) +
           queries * shape_.query_heads * static_cast<std::int64_t>(sizeof(float));
  }
  std::int64_t RowsRead(std::int64_t position) const override { return exact_->RowsRead(position); }
  std::int64_t fixed_bytes() const override { return exact_->fixed_bytes(); }
  std::int64_t bytes_per_token() const override { return exact_->bytes_per_token(); }
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override {
    return exact_->AppendBytes(position, count);
  }

 private:
  const LayerShape shape_;
  const std::unique_ptr<const Engine> exact_;
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
  if (config.mode != KdeConfig::Mode::kAuto) {
    return absl::InvalidArgumentError("kde.mode is not AUTO, which is the only one offered so far");
  }
  absl::StatusOr<std::unique_ptr<const Engine>> exact =
      MakeExactEngine(shape, {.storage = DataType::kF32});
  if (!exact.ok()) return exact.status();
  return std::make_unique<KdeEngine>(shape, *std::move(exact));
}

}  // namespace attnd::engine
