#include "server/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config_hash.h"
#include "server/error.h"
#include "server/proto_time.h"

namespace attnd::server {

Session::Session(SessionKey key, SessionPlan plan, const SessionBirth& birth, std::uint64_t flow,
                 const Clock& clock, Scheduler& scheduler, StateBudget& budget)
    : key_(std::move(key)),
      plan_(std::move(plan)),
      birth_(birth),
      config_hash_(HashOfConfig(plan_.config)),
      flow_(flow),
      clock_(clock),
      scheduler_(scheduler),
      budget_(budget),
      own_bytes_(OwnBytes(plan_)),
      last_use_nanos_(clock.MonotonicNanos()),
      bytes_(initial_bytes(plan_)),
      log_(kRememberedMessages) {
  time_to_live_nanos_ =
      plan_.config.time_to_live().seconds() * 1'000'000'000 + plan_.config.time_to_live().nanos();
  plan_.config.mutable_labels()->swap(labels_);
  for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
    const LayerStatePtr empty = engine::EmptyLayer(*plan_.groups[g].engine);
    for (std::int64_t i = 0; i < plan_.groups[g].layers; ++i) {
      group_of_layer_.push_back(g);
      states_.push_back(empty);
      layer_bytes_.push_back(plan_.groups[g].engine->fixed_bytes());
    }
  }
  last_steps_.resize(states_.size());
  replaced_.resize(states_.size());
  durable_positions_.resize(states_.size());
  extent_.segment_blocks.resize(states_.size());
  extent_.root_positions.resize(states_.size(), -1);
}

Session::~Session() { budget_.Adjust(-bytes_.load()); }

// Without layers.
std::int64_t Session::OwnBytes(const SessionPlan& plan) {
  return static_cast<std::int64_t>(sizeof(Session) + plan.identity.size() +
                                   plan.config.SpaceUsedLong());
}

std::int64_t Session::initial_bytes(const SessionPlan& plan) {
  std::int64_t bytes = OwnBytes(plan);
  for (const LayerGroup& group : plan.groups) bytes += group.layers * group.engine->fixed_bytes();
  return bytes;
}

absl::Status Session::CheckLayer(std::int64_t layer) const {
  if (layer >= 0 && layer < layers()) return absl::OkStatus();
  return Error(v1::INVALID_FIELD,
               absl::StrCat("layer is ", layer, "; this session has layers 0 to ", layers() - 1));
}

absl::Status Session::CheckGeneration(std::uint64_t generation) const {
  if (generation == birth_.generation) return absl::OkStatus();
  ErrorMetadata metadata = PositionMetadata();
  metadata.emplace_back("generation", absl::StrCat(birth_.generation));
  return Error(v1::STALE_GENERATION,
               absl::StrCat("generation is ", generation, "; the session's is ", birth_.generation),
               metadata);
}

ErrorMetadata Session::PositionMetadata() const {
  // gRPC clients accept 8 KiB of trailers by default and see another error beyond that.
  constexpr std::size_t kMaxLayers = 64;
  ErrorMetadata metadata;
  MutexLock lock(&mutex_);
  for (std::size_t i = 0; i < std::min(states_.size(), kMaxLayers); ++i) {
    metadata.emplace_back(absl::StrCat("position.", i), absl::StrCat(states_[i]->position()));
  }
  return metadata;
}

LayerStatePtr Session::layer(std::int64_t layer) const {
  MutexLock lock(&mutex_);
  return states_[static_cast<std::size_t>(layer)];
}

v1::Session Session::Describe() const {
  v1::Session session;
  session.set_session_id(key_.id);
  *session.mutable_config() = plan_.config;
  session.set_generation(birth_.generation);
  session.set_state_bytes(state_bytes());
  *session.mutable_create_time() = ToProto(birth_.create_time);
  const std::int64_t expiry = ExpiryNanos();
  *session.mutable_expires_in() = server::ToProto(
      absl::Nanoseconds(std::max<std::int64_t>(expiry - clock_.MonotonicNanos(), 0)));
  for (const LayerGroup& group : plan_.groups) {
    v1::EngineFacts& facts = *session.add_engine_facts();
    const engine::Engine& engine = *group.engine;
    facts.set_engine(engine.name());
    facts.set_feature_dim(engine.map_dim());
    facts.set_fixed_bytes(engine.fixed_bytes());
    facts.set_bytes_per_token(engine.bytes_per_token());
    facts.set_projection_hash(group.projection_hash);
  }
  MutexLock lock(&mutex_);
  *session.mutable_config()->mutable_time_to_live() =
      server::ToProto(absl::Nanoseconds(time_to_live_nanos_.load()));
  *session.mutable_config()->mutable_labels() = labels_;
  std::int64_t smallest = states_.front()->position();
  for (const LayerStatePtr& state : states_) {
    session.add_layer_positions(state->position());
    smallest = std::min(smallest, state->position());
  }
  session.set_position(smallest);
  session.set_loaded(true);
  if (!ephemeral()) {
    for (const std::int64_t position : durable_positions_) {
      session.add_durable_layer_positions(position);
    }
  }
  return session;
}

void Session::Update(const absl::Duration* time_to_live,
                     const google::protobuf::Map<std::string, std::string>* labels) {
  if (time_to_live != nullptr) time_to_live_nanos_ = absl::ToInt64Nanoseconds(*time_to_live);
  MutexLock lock(&mutex_);
  if (labels != nullptr) labels_ = *labels;
}

bool Session::HasLabels(const google::protobuf::Map<std::string, std::string>& labels) const {
  MutexLock lock(&mutex_);
  return std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
    mutex_.AssertHeld();
    const auto found = labels_.find(label.first);
    return found != labels_.end() && found->second == label.second;
  });
}

void Session::Start(std::unique_ptr<Job> job, Place place) {
  switch (place) {
    case Place::kWorker:
      scheduler_.Submit(key_.tenant, flow_, std::move(job));
      break;
    case Place::kHereIfIdle:
      scheduler_.RunHereIfIdle(key_.tenant, flow_, std::move(job));
      break;
    case Place::kHere:
      scheduler_.RunHere(key_.tenant, flow_, std::move(job));
      break;
  }
}

void Session::EnterLane(std::unique_ptr<Job> job, Place place) {
  {
    MutexLock lock(&mutex_);
    if (lane_taken_) {
      lane_.push_back(std::move(job));
      return;
    }
    lane_taken_ = true;
  }
  Start(std::move(job), place);
}

void Session::LeaveLane() {
  std::unique_ptr<Job> next;
  {
    MutexLock lock(&mutex_);
    if (lane_.empty()) {
      lane_taken_ = false;
      return;
    }
    next = std::move(lane_.front());
    lane_.pop_front();
  }
  scheduler_.Submit(key_.tenant, flow_, std::move(next));
}

absl::Status Session::ClassifyRetry(const engine::Message& message) const {
  MutexLock lock(&mutex_);
  const engine::MessageLog::Verdict verdict = log_.Classify(message);
  if (verdict == engine::MessageLog::Verdict::kReplay) return absl::OkStatus();
  for (const engine::TokenSpan& span : message.spans) {
    const std::int64_t current = states_[static_cast<std::size_t>(span.layer)]->position();
    if (current == span.position) continue;
    const ErrorMetadata metadata = {{"layer", absl::StrCat(span.layer)},
                                    {"position", absl::StrCat(current)}};
    if (verdict == engine::MessageLog::Verdict::kMismatch) {
      return Error(
          v1::REPLAY_MISMATCH,
          absl::StrCat("position ", span.position, " of layer ", span.layer,
                       " was filled by a message with other content; the layer is at ", current),
          metadata);
    }
    return Error(
        v1::WRONG_POSITION,
        absl::StrCat("position is ", span.position, "; layer ", span.layer, " is at ", current),
        metadata);
  }
  return Error(v1::INTERNAL_ERROR, "a message at the current positions was classified as a retry");
}

absl::StatusOr<std::shared_ptr<const v1::StepResponse>> Session::ReplayStep(
    const engine::Message& message) const {
  const std::int64_t layer = message.spans.front().layer;
  MutexLock lock(&mutex_);
  const StepAnswer& last = last_steps_[static_cast<std::size_t>(layer)];
  if (last.response && last.digest == message.digest) return last.response;
  return Error(v1::STEP_REPLAY_EXPIRED,
               absl::StrCat("layer ", layer, " was changed after the Step at position ",
                            message.spans.front().position, "; its answer is gone"));
}

// Called when `old` has just been replaced. Jobs take states under the same lock, so that none
// takes it after this.
void Session::NoteReplaced(std::size_t layer, const LayerStatePtr& old, ReplacedStates& spare) {
  ReplacedStates& replaced = replaced_[layer];
  // The empty state, which layers share, holds nothing.
  const bool in_use = old.use_count() > 1 && old->position() > 0;
  if (!in_use && replaced.empty()) return;
  const std::size_t g = group_of_layer_[layer];
  const engine::Engine& engine = *plan_.groups[g].engine;
  const engine::LayerState& now = *states_[layer];
  const bool windowed = plan_.config.layer_groups(static_cast<int>(g)).window_tokens() > 0;
  const std::int64_t left =
      windowed ? engine.bytes_per_token() * (now.position() - old->position()) : 0;
  if (in_use) {
    // Sums are copied before they are added to; keys and values are shared.
    const bool copied = engine.feature_dim() > 0 && old->sealed != now.sealed;
    spare.front() = {old, copied ? engine.fixed_bytes() : 0, left};
    replaced.splice(replaced.end(), spare, spare.begin());
    any_replaced_.store(true);
  } else {
    replaced.back().left_bytes += left;
  }
}

std::int64_t Session::ReplacedBytes() {
  std::int64_t bytes = 0;
  bool any = false;
  for (ReplacedStates& replaced : replaced_) {
    while (!replaced.empty() && replaced.front().state.expired()) replaced.pop_front();
    for (const Replaced& entry : replaced) {
      bytes += entry.left_bytes + (entry.state.expired() ? 0 : entry.own_bytes);
    }
    any = any || !replaced.empty();
  }
  any_replaced_.store(any);
  return bytes;
}

void Session::StateReleased() {
  if (!any_replaced_.load()) return;
  MutexLock lock(&mutex_);
  Account();
}

void Session::Account() {
  std::int64_t bytes = own_bytes_ + log_.bytes() + ReplacedBytes();
  for (const std::int64_t layer : layer_bytes_) bytes += layer;
  for (const StepAnswer& last : last_steps_) {
    if (last.response) bytes += static_cast<std::int64_t>(last.response->SpaceUsedLong());
  }
  budget_.Adjust(bytes - bytes_.exchange(bytes));
}

// Its elements are swapped out.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
absl::StatusOr<std::uint64_t> Session::Publish(
    std::vector<std::pair<std::int64_t, LayerStatePtr>> states, engine::Message message,
    const std::shared_ptr<const v1::StepResponse>& answer) {
  std::map<WaitId, Wait> ready;
  std::uint64_t sequence = 0;
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) return closed_;
    if (!log_status_.ok()) return log_status_;
    const engine::Digest digest = message.digest;
    ReplacedStates spare(states.size());
    // The last thing that takes memory: what follows cannot fail halfway.
    log_.Remember(std::move(message));
    for (auto& [layer, state] : states) {
      const auto index = static_cast<std::size_t>(layer);
      layer_bytes_[index] = state->bytes();
      states_[index].swap(state);
      NoteReplaced(index, state, spare);
      last_steps_[index] = {digest, answer};
    }
    sequence = ++sequence_;
    Account();
    for (auto wait = waits_.begin(); wait != waits_.end();) {
      const auto index = static_cast<std::size_t>(wait->second.layer);
      const auto reached = wait++;
      if (states_[index]->position() >= reached->second.position) {
        ready.insert(waits_.extract(reached));
      }
    }
  }
  for (const auto& [id, wait] : ready) wait.ready(absl::OkStatus());
  return sequence;
}

SessionSnapshot Session::Snapshot() const {
  MutexLock lock(&mutex_);
  return {sequence_, states_, last_steps_, log_};
}

void Session::Restore(SessionSnapshot snapshot) {
  MutexLock lock(&mutex_);
  sequence_ = snapshot.sequence;
  durable_sequence_ = snapshot.sequence;
  states_ = std::move(snapshot.layers);
  last_steps_ = std::move(snapshot.steps);
  log_ = std::move(snapshot.messages);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    layer_bytes_[i] = states_[i]->bytes();
    durable_positions_[i] = states_[i]->position();
  }
  Account();
}

std::int64_t Session::DurableWhenAnswered(std::int64_t layer, std::int64_t position) const {
  if (durability() == v1::LOGGED) return position;
  MutexLock lock(&mutex_);
  return durable_positions_[static_cast<std::size_t>(layer)];
}

bool Session::saved() const {
  MutexLock lock(&mutex_);
  return durable_sequence_ == sequence_;
}

void Session::NoteLogged(std::uint64_t sequence, const std::vector<engine::TokenSpan>& spans) {
  MutexLock lock(&mutex_);
  durable_sequence_ = std::max(durable_sequence_, sequence);
  for (const engine::TokenSpan& span : spans) {
    std::int64_t& durable = durable_positions_[static_cast<std::size_t>(span.layer)];
    durable = std::max(durable, span.position + span.count);
  }
}

void Session::NoteSaved(const SessionSnapshot& snapshot) {
  MutexLock lock(&mutex_);
  durable_sequence_ = std::max(durable_sequence_, snapshot.sequence);
  for (std::size_t i = 0; i < durable_positions_.size(); ++i) {
    durable_positions_[i] = std::max(durable_positions_[i], snapshot.layers[i]->position());
  }
  if (snapshot.sequence == sequence_) log_status_ = absl::OkStatus();
}

void Session::NoteLogBroken(const absl::Status& reason) {
  MutexLock lock(&mutex_);
  if (durability() == v1::LOGGED && durable_sequence_ < sequence_) log_status_ = reason;
}

absl::Status Session::log_status() const {
  MutexLock lock(&mutex_);
  return log_status_;
}

bool Session::RunIfOpen(const std::function<void()>& run) const {
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return false;
  run();
  return true;
}

Session::WaitId Session::WhenPosition(std::int64_t layer, std::int64_t position,
                                      std::function<void(const absl::Status&)> ready) {
  absl::Status now;
  {
    MutexLock lock(&mutex_);
    if (closed_.ok() && states_[static_cast<std::size_t>(layer)]->position() < position) {
      waits_[next_wait_] = {layer, position, std::move(ready)};
      return next_wait_++;
    }
    now = closed_;
  }
  ready(now);
  return 0;
}

bool Session::CancelWait(WaitId id) {
  MutexLock lock(&mutex_);
  return waits_.erase(id) > 0;
}

void Session::EndWaits(const absl::Status& reason) {
  std::map<WaitId, Wait> waits;
  {
    MutexLock lock(&mutex_);
    waits.swap(waits_);
  }
  for (const auto& [id, wait] : waits) wait.ready(reason);
}

std::int64_t Session::ExpiryNanos() const {
  const std::int64_t time_to_live = time_to_live_nanos_.load(std::memory_order_relaxed);
  if (uses_.load() == 0) return last_use_nanos_.load(std::memory_order_relaxed) + time_to_live;
  // However short its life is to be: whoever compares this reads the clock a little later.
  constexpr std::int64_t kLookAgainNanos = 1'000'000'000;
  return clock_.MonotonicNanos() + std::max(time_to_live, kLookAgainNanos);
}

void Session::Shut(const absl::Status& reason) {
  MutexLock lock(&mutex_);
  closed_ = reason;
}

void Session::Close(const absl::Status& reason) {
  Shut(reason);
  EndWaits(reason);
}

}  // namespace attnd::server
