#include "tests/bench/layer_run.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace attnd::bench {
namespace {

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

engine::ConstElements Elements(std::span<const float> numbers) {
  return {engine::DataType::kF32, numbers.data(), static_cast<std::int64_t>(numbers.size())};
}

}  // namespace

std::shared_ptr<const engine::LayerState> Append(const engine::Engine& engine,
                                                 std::span<const float> keys,
                                                 std::span<const float> values,
                                                 engine::Scratch& scratch) {
  const std::int64_t count = static_cast<std::int64_t>(keys.size()) / engine.shape().key_row();
  engine::LayerDraft draft(engine, engine::EmptyLayer(engine));
  Require(
      draft.Append({count, Elements(keys), Elements(values), nullptr}, 0, count, nullptr, scratch));
  Require(draft.CheckTail(scratch));
  return draft.Finish();
}

void Attender::Attend(const engine::LayerState& state, std::span<const float> queries,
                      const AskedOf& asked, engine::Scratch& scratch) {
  const engine::LayerShape& shape = engine_.shape();
  const auto count = static_cast<std::int64_t>(queries.size()) / shape.query_row();
  const auto rows = static_cast<std::size_t>(count * shape.query_heads);
  outputs_.resize(static_cast<std::size_t>(count * shape.output_row()));
  flags_.resize(rows);
  engine::AnswerView answer;
  answer.outputs = outputs_.data();
  answer.flags = flags_.data();
  if (engine_.approximate()) {
    errors_.resize(rows);
    keys_evaluated_.resize(rows);
    answer.estimates.errors = errors_.data();
    answer.estimates.keys_evaluated = keys_evaluated_.data();
  }
  const std::int64_t* positions = asked.positions;
  if (positions == nullptr && engine_.position_use() == engine::PositionUse::kRequired) {
    positions_.resize(static_cast<std::size_t>(count));
    std::iota(positions_.begin(), positions_.end(), 0);
    positions = positions_.data();
  }
  engine::QueryGroup group = engine::AttendGroup(state, queries.data(), count, positions);
  group.accuracy = asked.accuracy;
  plan_->Reset(group, answer);
  for (std::int64_t chain = 0; chain < plan_->chains(); ++chain) {
    while (!plan_->Run(chain, scratch)) {
    }
  }
  plan_->Finish(scratch);
}

}  // namespace attnd::bench
