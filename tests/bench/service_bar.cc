// The server against an echo that does no work, over loopback, each a process of its own. Client,
// echo and server share this machine's cores, as they would on a developer's.
//
// Server and echo take turns, so that both meet the same disturbances; what counts is the median
// over the turns.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.pb.h"
#include "engine/layer_stream.h"
#include "engine/linear/linear_engine.h"
#include "engine/token_rows.h"
#include "tests/bench/bars.h"
#include "tests/bench/load_client.h"
#include "tests/process/server_process.h"

namespace attnd::bench {
namespace {

constexpr std::int64_t kDim = 64;              // d_k = c = d_v, one head
constexpr std::int64_t kAppendTokens = 2048;   // of 64 + 64 floats: 1 MiB
constexpr std::int64_t kLinearTokens = 4096;   // 63 sealed blocks and a full open one
constexpr std::int64_t kExactTokens = 131072;  // under load
constexpr std::int64_t kLoadQueries = 4096;

constexpr double kAttendTarget = 1.3;
constexpr double kExactAppendTarget = 1.5;
constexpr double kLinearAppendTarget = 1.25;
constexpr double kFairTargetMs = 2;

constexpr double kMicros = 1e6;
constexpr double kMillis = 1e3;

struct Servers {
  process::ServerProcess attnd{{ATTND_PROGRAM, "--listen=127.0.0.1:0",
                                "--http_listen=", "--log_level=error", "--ready_file=READY_FILE"}};
  process::ServerProcess echo{{ATTND_ECHO_PROGRAM, "READY_FILE"}};
};

void FillTensor(std::int64_t rows, std::uint32_t seed, v1::Tensor& tensor) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  tensor.set_dtype(v1::F32);
  for (const std::int64_t size : {rows, std::int64_t{1}, kDim}) tensor.add_shape(size);
  std::string& data = *tensor.mutable_data();
  data.resize(static_cast<std::size_t>(rows * kDim) * sizeof(float));
  auto* numbers = reinterpret_cast<float*>(data.data());
  std::generate_n(numbers, rows * kDim, [&] { return normal(random); });
}

v1::Session CreateSession(LoadClient& client, bool linear) {
  v1::CreateSessionRequest request;
  v1::LayerGroup& group = *request.mutable_config()->add_layer_groups();
  group.set_key_dim(kDim);
  if (linear) {
    group.mutable_linear()->mutable_feature_map()->set_kind(v1::ELU_PLUS_ONE);
  } else {
    group.mutable_exact();
  }
  return client.Create(request);
}

// 1 MiB of tokens for a new session.
v1::AppendRequest MakeAppend(const v1::Session& session) {
  v1::AppendRequest request;
  request.set_session_id(session.session_id());
  request.set_generation(session.generation());
  v1::LayerTokens& tokens = *request.add_tokens();
  tokens.set_position(0);
  FillTensor(kAppendTokens, 1, *tokens.mutable_keys());
  FillTensor(kAppendTokens, 2, *tokens.mutable_values());
  return request;
}

v1::Session CreateFilled(LoadClient& client, bool linear, std::int64_t count) {
  const v1::Session session = CreateSession(client, linear);
  v1::AppendRequest append = MakeAppend(session);
  client.Append(append, static_cast<int>(count / kAppendTokens));
  return session;
}

v1::AttendRequest MakeAttend(const v1::Session& session, std::int64_t queries) {
  v1::AttendRequest request;
  request.set_session_id(session.session_id());
  FillTensor(queries, 3, *request.mutable_queries());
  return request;
}

// LayerDraft's work on the tokens of one Append, to a layer that holds tokens. The tokens come from
// a set larger than the second-level cache, as those of a new message do.
double EngineSeconds(const v1::AppendRequest& request) {
  constexpr int kCalls = 64;
  constexpr std::size_t kMessages = 16;
  const auto linear = engine::MakeLinearEngine({1, 1, kDim, kDim, 1.0F}, {});
  if (!linear.ok()) std::abort();
  const std::vector<v1::AppendRequest> messages(kMessages, request);
  std::size_t next = 0;
  const auto elements = [](const v1::Tensor& tensor) {
    return engine::ConstElements{engine::DataType::kF32, tensor.data().data(),
                                 kAppendTokens * kDim};
  };
  engine::Scratch scratch;
  std::shared_ptr<const engine::LayerState> state = engine::EmptyLayer(**linear);
  return MedianSeconds({kCalls}, [&] {
    const v1::LayerTokens& tokens = messages[next++ % kMessages].tokens(0);
    const engine::TokenBatch batch = {kAppendTokens, elements(tokens.keys()),
                                      elements(tokens.values()), nullptr};
    engine::LayerDraft draft(**linear, state);
    engine::TokenDigester digester;
    if (!draft.Append(batch, 0, kAppendTokens, &digester, scratch).ok()) std::abort();
    if (!draft.CheckTail(scratch).ok()) std::abort();
    state = draft.Finish();
  });
}

// The p50 of Appends to a new session. It is deleted afterwards, so that the next one's memory has
// been used before: on a virtual machine the first touch of a page can cost more than the Append.
double AppendSeconds(LoadClient& client, bool linear, int calls) {
  const v1::Session session = CreateSession(client, linear);
  v1::AppendRequest request = MakeAppend(session);
  const double seconds = Median(client.Append(request, calls));
  client.Delete(session.session_id());
  return seconds;
}

}  // namespace

std::vector<Bar> AttendLatencyBars(const BenchOptions& options) {
  constexpr int kWarmupCalls = 500;
  constexpr int kCalls = 1500;
  constexpr std::array<int, 2> kConcurrency = {1, 8};
  // gRPC's threads share the work of a connection in one of several ways, each of which lasts, with
  // p50s from 110 to 280 us for the echo of 8 calls at a time: many rounds, each with new servers.
  const int rounds = 3 * options.repetitions;
  struct Numbers {
    std::vector<double> attnd;
    std::vector<double> echo;
    std::vector<double> ratio;
  };
  std::array<Numbers, kConcurrency.size()> numbers;
  for (int round = 0; round < rounds; ++round) {
    const Servers servers;
    LoadClient attnd(servers.attnd.address());
    LoadClient echo(servers.echo.address());
    const v1::AttendRequest request = MakeAttend(CreateFilled(attnd, true, kLinearTokens), 1);
    for (std::size_t i = 0; i < kConcurrency.size(); ++i) {
      attnd.Attend(request, kConcurrency[i], kWarmupCalls);
      echo.Attend(request, kConcurrency[i], kWarmupCalls);
      const double attnd_seconds = Median(attnd.Attend(request, kConcurrency[i], kCalls));
      const double echo_seconds = Median(echo.Attend(request, kConcurrency[i], kCalls));
      numbers[i].attnd.push_back(attnd_seconds);
      numbers[i].echo.push_back(echo_seconds);
      numbers[i].ratio.push_back(attnd_seconds / echo_seconds);
    }
  }
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < kConcurrency.size(); ++i) {
    const double ratio = Median(numbers[i].ratio);
    std::printf("attend of 1 query, %d at a time: p50 %.1f us; echo %.1f us; ratio %.3f\n",
                kConcurrency[i], Median(numbers[i].attnd) * kMicros,
                Median(numbers[i].echo) * kMicros, ratio);
    bars.push_back(
        {absl::StrCat("attend_one_query_of_echo_", kConcurrency[i]), ratio, kAttendTarget, true});
  }
  return bars;
}

std::vector<Bar> AppendLatencyBars(const BenchOptions& options) {
  constexpr int kCalls = 64;
  // A virtual machine's speed drifts by a fifth within seconds: many short rounds, each with all
  // parts of the ratios.
  const int rounds = 3 * options.repetitions;
  const Servers servers;
  LoadClient attnd(servers.attnd.address());
  LoadClient echo(servers.echo.address());
  v1::AppendRequest to_echo = MakeAppend({});
  std::vector<double> exact_p50;
  std::vector<double> linear_p50;
  std::vector<double> echo_p50;
  std::vector<double> exact_ratios;
  std::vector<double> linear_ratios;
  std::vector<double> engine;
  for (int round = -1; round < rounds; ++round) {
    const double exact_seconds = AppendSeconds(attnd, false, kCalls);
    const double echo_seconds = Median(echo.Append(to_echo, kCalls));
    const double linear_seconds = AppendSeconds(attnd, true, kCalls);
    const double engine_seconds = EngineSeconds(to_echo);
    if (round < 0) continue;  // warms up
    exact_p50.push_back(exact_seconds);
    linear_p50.push_back(linear_seconds);
    echo_p50.push_back(echo_seconds);
    exact_ratios.push_back(exact_seconds / echo_seconds);
    linear_ratios.push_back((linear_seconds - echo_seconds) / engine_seconds);
    engine.push_back(engine_seconds);
  }
  std::printf(
      "append of 1 MiB: exact p50 %.1f us; linear %.1f us; echo %.1f us; linear engine alone "
      "%.1f us\n",
      Median(exact_p50) * kMicros, Median(linear_p50) * kMicros, Median(echo_p50) * kMicros,
      Median(engine) * kMicros);
  return {
      {"append_exact_of_echo", Median(exact_ratios), kExactAppendTarget, true},
      {"append_linear_beyond_echo_of_engine", Median(linear_ratios), kLinearAppendTarget, true}};
}

std::vector<Bar> FairnessBars(const BenchOptions& options) {
  constexpr int kCalls = 2000;
  // Long enough for several of the large ones to end and the next to begin.
  constexpr int kLoadedCalls = 8000;
  const Servers servers;
  LoadClient client(servers.attnd.address());
  LoadClient load_client(servers.attnd.address());
  const v1::AttendRequest one = MakeAttend(CreateFilled(client, true, kLinearTokens), 1);
  const v1::AttendRequest many =
      MakeAttend(CreateFilled(load_client, false, kExactTokens), kLoadQueries);
  std::vector<double> alone_p99;
  std::vector<double> loaded_p99;
  std::vector<double> extras;
  int loads = 0;
  for (int round = -1; round < options.repetitions; ++round) {
    const double alone = Percentile(client.Attend(one, 1, kCalls), 99);
    std::atomic<bool> stop = false;
    std::thread load([&] { loads += load_client.AttendUntil(many, [&] { return stop.load(); }); });
    const double loaded = Percentile(client.Attend(one, 1, kLoadedCalls), 99);
    stop = true;
    load.join();
    if (round < 0) continue;  // warms up
    alone_p99.push_back(alone);
    loaded_p99.push_back(loaded);
    extras.push_back(loaded - alone);
  }
  std::printf(
      "attend of 1 query: p99 %.2f ms; %.2f ms beside %lld queries over %lld tokens, of which %d "
      "were answered\n",
      Median(alone_p99) * kMillis, Median(loaded_p99) * kMillis,
      static_cast<long long>(kLoadQueries), static_cast<long long>(kExactTokens), loads);
  return {{"fairness_added_p99_ms", Median(extras) * kMillis, kFairTargetMs, true}};
}

}  // namespace attnd::bench
