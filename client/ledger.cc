#include "client/ledger.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

absl::Status Busy(std::int64_t layer) {
  return absl::DeadlineExceededError(
      absl::StrCat("layer ", layer, " is still being changed by another call of this program"));
}

}  // namespace

Ledger::Ledger(std::vector<std::int64_t> positions, std::vector<std::int64_t> durable_positions)
    : layer_count_(static_cast<std::int64_t>(positions.size())), layers_(positions.size()) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    layers_[i].acknowledged = positions[i];
    layers_[i].sent = positions[i];
    if (i < durable_positions.size()) layers_[i].durable = durable_positions[i];
  }
}

Ledger::Layer& Ledger::At(std::int64_t layer) { return layers_[static_cast<std::size_t>(layer)]; }

const Ledger::Layer& Ledger::At(std::int64_t layer) const {
  return layers_[static_cast<std::size_t>(layer)];
}

std::int64_t Ledger::Acknowledged(std::int64_t layer) const {
  MutexLock lock(mutex_);
  return At(layer).acknowledged;
}

void Ledger::SetAcknowledged(std::int64_t layer, std::int64_t position) {
  MutexLock lock(mutex_);
  Layer& state = At(layer);
  state.acknowledged = position;
  if (state.unanswered == 0) state.sent = position;
}

std::int64_t Ledger::Durable(std::int64_t layer) const {
  MutexLock lock(mutex_);
  return At(layer).durable;
}

void Ledger::RaiseDurable(std::int64_t layer, std::int64_t position) {
  MutexLock lock(mutex_);
  Layer& state = At(layer);
  state.durable = std::max(state.durable, position);
}

absl::Status Ledger::Acquire(std::span<const std::int64_t> layers, const void* owner,
                             Deadline deadline) {
  std::vector<std::int64_t> order(layers.begin(), layers.end());
  std::sort(order.begin(), order.end());
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < order.size(); ++i) {
    while (At(order[i]).owner != nullptr) {
      if (changed_.WaitUntil(mutex_, deadline)) continue;
      for (std::size_t j = 0; j < i; ++j) At(order[j]).owner = nullptr;
      changed_.NotifyAll();
      return Busy(order[i]);
    }
    At(order[i]).owner = owner;
  }
  return absl::OkStatus();
}

void Ledger::Release(std::span<const std::int64_t> layers) {
  MutexLock lock(mutex_);
  for (const std::int64_t layer : layers) At(layer).owner = nullptr;
  changed_.NotifyAll();
}

absl::StatusOr<std::int64_t> Ledger::BeginMessage(std::int64_t layer, const void* owner,
                                                  std::int64_t rows, bool is_step,
                                                  Deadline deadline) {
  MutexLock lock(mutex_);
  Layer& state = At(layer);
  while ((state.owner != nullptr && state.owner != owner) || state.step_unanswered) {
    if (!changed_.WaitUntil(mutex_, deadline)) return Busy(layer);
  }
  state.owner = owner;
  state.step_unanswered = is_step;
  ++state.unanswered;
  const std::int64_t position = state.sent;
  state.sent += rows;
  return position;
}

void Ledger::EndMessage(std::int64_t layer, std::optional<std::int64_t> position) {
  MutexLock lock(mutex_);
  Layer& state = At(layer);
  // A message after a Step is not sent before the Step's answer, so whichever message ends here, no
  // other Step is unanswered.
  --state.unanswered;
  if (position.has_value()) state.acknowledged = *position;
  FreeIfAnswered(state);
}

void Ledger::AbandonMessage(std::int64_t layer, std::int64_t rows) {
  MutexLock lock(mutex_);
  Layer& state = At(layer);
  --state.unanswered;
  state.sent -= rows;
  // It began, so no Step but itself was unanswered.
  state.step_unanswered = false;
  FreeIfAnswered(state);
}

void Ledger::FreeIfAnswered(Layer& state) {
  if (state.unanswered == 0) {
    state.step_unanswered = false;
    state.owner = nullptr;
    state.sent = state.acknowledged;
  }
  changed_.NotifyAll();
}

}  // namespace attnd::client
