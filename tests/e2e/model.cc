#include "tests/e2e/model.h"

#include <numeric>

#include "engine/scratch.h"
#include "server/session_config.h"

namespace attnd::e2e {

Model::Model(const v1::LayerGroup& group, const Tokens& pool, server::FeatureMapStore& maps)
    : pool_(pool) {
  const auto plan = server::PlanSession(ConfigOf({group}), TestOptions(), &maps);
  EXPECT_TRUE(plan.ok()) << plan.status();
  engine_ = plan->groups[0].engine;
  state_ = engine::EmptyLayer(*engine_);
}

void Model::Append(std::int64_t count) {
  const auto elements = [](const std::vector<float>& numbers) {
    return engine::ConstElements{engine::DataType::kF32, numbers.data(), std::ssize(numbers)};
  };
  const engine::TokenBatch batch = {pool_.count,
                                    elements(pool_.keys),
                                    elements(pool_.values),
                                    pool_.mask.empty() ? nullptr : pool_.mask.data(),
                                    elements(pool_.log_decays),
                                    elements(pool_.rates)};
  engine::Scratch scratch;
  engine::LayerDraft draft(*engine_, state_);
  const absl::Status status = draft.Append(batch, position(), count, nullptr, scratch);
  EXPECT_TRUE(status.ok()) << status;
  state_ = draft.Finish();
}

std::string Model::Run(const engine::QueryGroup& group) const {
  std::string bytes(
      static_cast<std::size_t>(group.count * engine_->shape().output_row()) * sizeof(float), 0);
  engine::AnswerView view;
  view.outputs = reinterpret_cast<float*>(bytes.data());
  engine::Scratch scratch;
  const std::unique_ptr<engine::AttendPlan> plan = engine_->NewPlan();
  plan->Reset(group, view);
  for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  return bytes;
}

std::string Model::Attend(const float* queries, std::int64_t count, std::int64_t first,
                          const engine::Accuracy& accuracy) const {
  std::string bytes;
  // One at a time: what else is asked must not matter.
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t stands = first + i;
    engine::QueryGroup group =
        engine::AttendGroup(*state_, queries + i * engine_->shape().query_row(), 1, &stands);
    group.accuracy = accuracy;
    bytes += Run(group);
  }
  return bytes;
}

std::string Model::Step(const float* queries, std::int64_t count,
                        const engine::Accuracy& accuracy) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t stands = position();
    Append(1);
    bytes += Attend(queries + i * engine_->shape().query_row(), 1, stands, accuracy);
  }
  return bytes;
}

}  // namespace attnd::e2e
