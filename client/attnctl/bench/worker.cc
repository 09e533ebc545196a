#include "client/attnctl/bench/worker.h"

#include <cmath>
#include <cstddef>
#include <random>
#include <semaphore>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace attnd::attnctl {
namespace {

using TimePoint = Schedule::Clock::time_point;

std::vector<float> Normal(std::mt19937_64& random, std::int64_t count) {
  std::normal_distribution<float> distribution;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = distribution(random);
  return numbers;
}

std::vector<float> Sigmoids(std::mt19937_64& random, std::int64_t count) {
  std::vector<float> numbers = Normal(random, count);
  for (float& number : numbers) number = 1 / (1 + std::exp(-number));
  return numbers;
}

constexpr float kLeastLogDecay = -0.15F;

}  // namespace

client::LayerTokens Payload::tokens(std::int64_t count) const {
  const auto tensor = [&](const std::vector<float>& numbers, std::int64_t dim) {
    return client::Rows(client::F32(numbers, {rows, shape.kv_heads, dim}), 0, count);
  };
  client::LayerTokens tokens{0, tensor(keys, shape.key_dim), tensor(values, shape.value_dim), ""};
  if (shape.log_decays > 0) tokens.log_decays = tensor(log_decays, shape.log_decays);
  if (shape.rates > 0) tokens.rates = tensor(rates, shape.rates);
  return tokens;
}

client::ConstTensor Payload::query_tensor() const {
  return client::F32(queries, {rows, shape.query_heads, shape.key_dim});
}

Payload MakePayload(const client::LayerShape& shape, std::int64_t rows, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Payload payload;
  payload.rows = rows;
  payload.shape = shape;
  payload.keys = Normal(random, rows * shape.kv_heads * shape.key_dim);
  payload.values = Normal(random, rows * shape.kv_heads * shape.value_dim);
  payload.queries = Normal(random, rows * shape.query_heads * shape.key_dim);
  // A delta rule bears keys of about length 1; with longer ones its sums grow without bound.
  const float length = std::sqrt(static_cast<float>(shape.key_dim));
  for (float& key : payload.keys) key /= shape.rates > 0 ? length : 1.0F;
  payload.log_decays = Sigmoids(random, rows * shape.kv_heads * shape.log_decays);
  for (float& log_decay : payload.log_decays) log_decay *= kLeastLogDecay;
  payload.rates = Sigmoids(random, rows * shape.kv_heads * shape.rates);
  return payload;
}

void Totals::Merge(const Totals& other) {
  latency.Merge(other.latency);
  failed += other.failed;
  for (const auto& [name, failure] : other.failures) {
    Failure& mine = failures[name];
    if (mine.count == 0) mine.first = failure.first;
    mine.count += failure.count;
  }
}

Worker::Worker(const BenchCommand& command, std::shared_ptr<client::SessionHandle> session,
               std::uint64_t seed)
    : command_(command),
      session_(std::move(session)),
      payload_(MakePayload(session_->shape(0), command.batch, seed)) {}

void Worker::Run(Schedule& schedule) {
  if (command_.transport == "stream") {
    RunStream(schedule);
  } else {
    RunUnary(schedule);
  }
}

TimePoint Worker::WaitFor(TimePoint intended) const {
  if (command_.rate <= 0) return Schedule::Clock::now();
  std::this_thread::sleep_until(intended);
  return intended;
}

void Worker::RunUnary(Schedule& schedule) {
  while (const auto intended = schedule.Next(Schedule::Clock::now())) {
    const TimePoint begin = WaitFor(*intended);
    Count(begin, CallUnary());
  }
}

absl::Status Worker::CallUnary() {
  if (command_.call == "append") return session_->Append(payload_.tokens()).status();
  if (command_.call == "step") {
    return session_->Step(payload_.tokens(), payload_.query_tensor()).status();
  }
  return session_->Attend(0, payload_.query_tensor()).status();
}

void Worker::RunStream(Schedule& schedule) {
  client::StreamOptions options;
  options.max_unanswered = command_.window;
  auto stream = session_->OpenStream(options);
  if (!stream.ok()) return Count(Schedule::Clock::now(), stream.status());
  // Taken before the clock is read, so that a closed loop does not count the wait for its own
  // window.
  std::counting_semaphore<> window(command_.window);
  for (;;) {
    window.acquire();
    const auto intended = schedule.Next(Schedule::Clock::now());
    if (!intended.has_value()) break;
    const TimePoint begin = WaitFor(*intended);
    const absl::Status sent =
        SendOnStream(**stream, [this, begin, &window](const absl::Status& status) {
          Count(begin, status);
          window.release();
        });
    if (sent.ok()) continue;
    Count(begin, sent);
    window.release();
    if (!(*stream)->Resume(0).ok()) break;
    if (sent.code() != absl::StatusCode::kFailedPrecondition) break;
  }
  const absl::Status end = (*stream)->Finish();
  if (!end.ok()) Count(Schedule::Clock::now(), end);
}

absl::Status Worker::SendOnStream(client::Stream& stream,
                                  std::function<void(const absl::Status&)> done) {
  const auto finish = [done = std::move(done)](const auto& result) { done(result.status()); };
  if (command_.call == "append") {
    const client::LayerTokens tokens = payload_.tokens();
    return stream.Append({&tokens, 1}, finish);
  }
  if (command_.call == "step") {
    return stream.Step(payload_.tokens(), payload_.query_tensor(), {}, finish);
  }
  return stream.Attend(0, payload_.query_tensor(), {}, finish);
}

void Worker::Count(TimePoint begin, const absl::Status& status) {
  const auto took = Schedule::Clock::now() - begin;
  client::MutexLock lock(mutex_);
  if (status.ok()) {
    totals_.latency.Record(std::chrono::nanoseconds(took).count());
    return;
  }
  const std::string reason = client::ErrorReasonOf(status);
  Totals::Failure& failure = totals_.failures[absl::StrCat(absl::StatusCodeToString(status.code()),
                                                           reason.empty() ? "" : " ", reason)];
  if (failure.count++ == 0) failure.first = status;
  ++totals_.failed;
}

Totals Worker::totals() const {
  client::MutexLock lock(mutex_);
  return totals_;
}

void Worker::Reset() {
  client::MutexLock lock(mutex_);
  totals_ = Totals();
}

}  // namespace attnd::attnctl
