#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/labels.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/process_metrics.h"

namespace attnd::server {
namespace {

using prometheus::Counter;
using prometheus::Histogram;
using prometheus::Labels;

// The label values of each enum, in its order. A new enumerator needs its name here; the
// static_asserts below tie the sizes to the last enumerators.
constexpr std::array kMethods = {"CreateSession", "GetSession",    "ListSessions", "UpdateSession",
                                 "DeleteSession", "Append",        "Attend",       "Step",
                                 "Stream",        "PutFeatureMap", "FlushSession", "GetServerInfo"};
constexpr std::array kCalls = {"append", "attend", "step"};
constexpr std::array kTransports = {"unary", "stream"};
constexpr std::array kEngines = {"exact", "linear", "kde"};
constexpr std::array kPaths = {"exact", "index", "certified", "paper"};
constexpr std::array kStages = {"queue", "decode", "compute", "encode"};
constexpr std::array kRejectReasons = {
    "QUEUE_FULL",         "INFLIGHT_BYTES", "TOO_MANY_SESSIONS", "STATE_BYTES",
    "RESPONSE_TOO_LARGE", "SLOW_READER",    "FEATURE_MAP_BYTES", "SHUTTING_DOWN"};
constexpr std::array kCloseReasons = {"deleted", "expired"};
constexpr std::array kUploadResults = {"stored", "already_there", "invalid", "refused",
                                       "abandoned"};
// As the Go middleware spells them, by number.
constexpr std::array kCodes = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};
constexpr std::size_t kUnknownCode = 2;

template <typename Enum>
constexpr std::size_t Index(Enum value) {
  return static_cast<std::size_t>(value);
}

static_assert(kMethods.size() == Index(RpcMethod::kGetServerInfo) + 1);
static_assert(kCalls.size() == Index(CallKind::kStep) + 1);
static_assert(kTransports.size() == Index(Transport::kStream) + 1);
static_assert(kEngines.size() == Index(EngineKind::kKde) + 1);
static_assert(kPaths.size() == Index(engine::AnswerPath::kPaper) + 1);
static_assert(kStages.size() == Index(Stage::kEncode) + 1);
static_assert(kRejectReasons.size() == Index(RejectReason::kShuttingDown) + 1);
static_assert(kCloseReasons.size() == Index(CloseReason::kExpired) + 1);
static_assert(kUploadResults.size() == Index(UploadResult::kAbandoned) + 1);

// 1 microsecond * 2^k up to 16.8 s: below the cheapest stage and above the longest call that anyone
// waits for, with a relative error of a percentile of at most 2.
Histogram::BucketBoundaries Buckets() {
  Histogram::BucketBoundaries bounds;
  for (int k = 0; k <= 24; ++k) {
    bounds.push_back(1e-6 * static_cast<double>(std::int64_t{1} << k));
  }
  return bounds;
}

// From a block of keys to 16 million, by factors of 4.
constexpr std::array kKeyBounds = {64.0,    256.0,    1024.0,    4096.0,    16384.0,
                                   65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0};
// From what f32 cannot tell from exact to an output that is all error.
constexpr std::array kErrorBounds = {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01,
                                     0.02, 0.05, 0.1,  0.2,  0.5,  1.0};

// Observations of one message, on their way to a histogram with these bounds.
template <std::size_t kBounds>
struct Tally {
  explicit Tally(const std::array<double, kBounds>& upper) : bounds(upper) {}

  // Infinite values count, and are left out of the sum, which they would spoil for good.
  void Add(double value) {
    const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
    counts[static_cast<std::size_t>(bound - bounds.begin())] += 1;
    if (std::isfinite(value)) sum += value;
  }

  const std::array<double, kBounds>& bounds;
  std::array<double, kBounds + 1> counts{};
  double sum = 0;
};

template <std::size_t kBounds>
Histogram::BucketBoundaries BoundsOf(const std::array<double, kBounds>& bounds) {
  return {bounds.begin(), bounds.end()};
}

// Divides, since 1e-9 is not a binary fraction: 1,000 ns times it lies above the bound of 1
// microsecond.
double Seconds(std::int64_t nanos) { return static_cast<double>(nanos > 0 ? nanos : 0) / 1e9; }

// One of the families whose value is read at collection.
prometheus::MetricFamily Sampled(std::string name, std::string help, prometheus::MetricType type,
                                 double value) {
  prometheus::MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  family.metric.emplace_back();
  if (type == prometheus::MetricType::Counter) {
    family.metric.back().counter.value = value;
  } else {
    family.metric.back().gauge.value = value;
  }
  return family;
}

void AppendProcessFamilies(std::vector<prometheus::MetricFamily>& families) {
  constexpr auto kCounter = prometheus::MetricType::Counter;
  constexpr auto kGauge = prometheus::MetricType::Gauge;
  const ProcessMetrics process = ReadProcessMetrics();
  const auto add = [&families](const char* name, const char* help, prometheus::MetricType type,
                               auto value) {
    families.push_back(Sampled(name, help, type, static_cast<double>(value)));
  };
  add("process_cpu_seconds_total", "User and system CPU time spent in seconds.", kCounter,
      process.cpu_seconds);
  add("process_resident_memory_bytes", "Resident memory size in bytes.", kGauge,
      process.resident_bytes);
  add("process_virtual_memory_bytes", "Virtual memory size in bytes.", kGauge,
      process.virtual_bytes);
  add("process_open_fds", "Open file descriptors.", kGauge, process.open_fds);
  add("process_max_fds", "Largest number of open file descriptors.", kGauge, process.max_fds);
  add("process_start_time_seconds", "Start time since the Unix epoch in seconds.", kGauge,
      process.start_time_seconds);
  add("process_threads", "Threads of the process.", kGauge, process.threads);
}

}  // namespace

struct Metrics::Impl {
  struct Rpc {
    Counter* started;
    std::array<Counter*, kCodes.size()> handled;
    Histogram* seconds;
    Counter* received;
    Counter* sent;
  };

  explicit Impl(const BuildInfo& build);

  prometheus::Family<Counter>& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<Histogram>& Histograms(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

  prometheus::Registry registry;
  std::array<Rpc, kMethods.size()> rpcs{};
  std::array<std::array<std::array<Histogram*, kEngines.size()>, kTransports.size()>, kCalls.size()>
      message_seconds{};
  std::array<std::array<Histogram*, kEngines.size()>, kStages.size()> stage_seconds{};
  std::array<Counter*, kEngines.size()> tokens{};
  std::array<Counter*, kEngines.size()> queries{};
  std::array<Counter*, kPaths.size()> kde_answers{};
  Counter* kde_calibrated = nullptr;
  Histogram* kde_keys = nullptr;
  Histogram* kde_errors = nullptr;
  Histogram* kde_audits = nullptr;
  Counter* kde_audits_beyond = nullptr;
  std::array<Counter*, kRejectReasons.size()> rejected{};
  Counter* created = nullptr;
  std::array<Counter*, kCloseReasons.size()> closed{};
  std::array<Counter*, kUploadResults.size()> uploads{};

  // A histogram takes counts as a vector, which is made once.
  template <std::size_t kBounds>
  void Observe(Histogram& histogram, const Tally<kBounds>& tally) {
    const std::lock_guard<std::mutex> lock(counts_mutex);
    counts.assign(tally.counts.begin(), tally.counts.end());
    histogram.ObserveMultiple(counts, tally.sum);
  }

  std::mutex counts_mutex;
  std::vector<double> counts;  // guarded by counts_mutex

  std::mutex source_mutex;
  std::function<GaugeValues()> source;  // guarded by source_mutex
};

Metrics::Impl::Impl(const BuildInfo& build) {
  const Histogram::BucketBoundaries buckets = Buckets();

  auto& started = Counters("grpc_server_started_total", "RPCs started on the server.");
  auto& handled = Counters("grpc_server_handled_total",
                           "RPCs completed on the server, regardless of success or failure.");
  auto& handling = Histograms("grpc_server_handling_seconds",
                              "Time of RPCs from start to completion on the server, in seconds.");
  auto& received = Counters("grpc_server_msg_received_total", "Messages received by the server.");
  auto& sent = Counters("grpc_server_msg_sent_total", "Messages sent by the server.");
  for (std::size_t m = 0; m < kMethods.size(); ++m) {
    const char* const type = m == Index(RpcMethod::kStream)          ? "bidi_stream"
                             : m == Index(RpcMethod::kPutFeatureMap) ? "client_stream"
                                                                     : "unary";
    const Labels labels = {{"grpc_type", type},
                           {"grpc_service", "attnd.v1.AttentionService"},
                           {"grpc_method", kMethods[m]}};
    Rpc& rpc = rpcs[m];
    rpc.started = &started.Add(labels);
    rpc.seconds = &handling.Add(labels, buckets);
    rpc.received = &received.Add(labels);
    rpc.sent = &sent.Add(labels);
    for (std::size_t code = 0; code < kCodes.size(); ++code) {
      Labels with_code = labels;
      with_code.emplace("grpc_code", kCodes[code]);
      rpc.handled[code] = &handled.Add(with_code);
    }
  }

  auto& messages = Histograms("attnd_message_seconds",
                              "Time from the arrival of a message to its answer, unary calls and "
                              "messages in streams alike.");
  for (std::size_t c = 0; c < kCalls.size(); ++c) {
    for (std::size_t t = 0; t < kTransports.size(); ++t) {
      for (std::size_t e = 0; e < kEngines.size(); ++e) {
        message_seconds[c][t][e] = &messages.Add(
            {{"call", kCalls[c]}, {"transport", kTransports[t]}, {"engine", kEngines[e]}}, buckets);
      }
    }
  }
  auto& stages = Histograms("attnd_stage_seconds",
                            "Time that messages spend in each stage of their handling.");
  for (std::size_t s = 0; s < kStages.size(); ++s) {
    for (std::size_t e = 0; e < kEngines.size(); ++e) {
      stage_seconds[s][e] = &stages.Add({{"stage", kStages[s]}, {"engine", kEngines[e]}}, buckets);
    }
  }

  auto& token_counts = Counters("attnd_tokens_appended_total",
                                "Tokens appended, counted once per layer that received them.");
  auto& query_counts = Counters("attnd_queries_total", "Query rows answered.");
  for (std::size_t e = 0; e < kEngines.size(); ++e) {
    tokens[e] = &token_counts.Add({{"engine", kEngines[e]}});
    queries[e] = &query_counts.Add({{"engine", kEngines[e]}});
  }
  auto& answers = Counters("attnd_kde_answers_total",
                           "Query rows of kde layers, counted once per head, by how they were "
                           "answered.");
  for (std::size_t p = 0; p < kPaths.size(); ++p)
    kde_answers[p] = &answers.Add({{"path", kPaths[p]}});
  kde_calibrated =
      &Counters("attnd_kde_calibrated_total",
                "Query rows of kde layers whose stated error is calibrated, exact ones included.")
           .Add({});
  kde_keys = &Histograms("attnd_kde_keys_evaluated",
                         "Keys evaluated exactly per query row and head of kde layers.")
                  .Add({}, BoundsOf(kKeyBounds));
  kde_errors = &Histograms("attnd_kde_stated_error",
                           "Stated errors, relative to the values' spread, of query rows of kde "
                           "layers that did not take the exact path.")
                    .Add({}, BoundsOf(kErrorBounds));
  kde_audits =
      &Histograms("attnd_kde_audited_error",
                  "True errors, relative to the values' spread, of query rows of kde layers "
                  "that were audited.")
           .Add({}, BoundsOf(kErrorBounds));
  kde_audits_beyond =
      &Counters("attnd_kde_audits_beyond_stated_total",
                "Audited query rows of kde layers whose true error exceeds the stated one.")
           .Add({});
  counts.reserve(std::max(kKeyBounds.size(), kErrorBounds.size()) + 1);

  auto& rejections =
      Counters("attnd_rejected_total", "Calls and messages refused for a limit, by error reason.");
  for (std::size_t r = 0; r < kRejectReasons.size(); ++r) {
    rejected[r] = &rejections.Add({{"reason", kRejectReasons[r]}});
  }
  created = &Counters("attnd_sessions_created_total", "Sessions created.").Add({});
  auto& closings = Counters("attnd_sessions_closed_total", "Sessions closed, by reason.");
  for (std::size_t r = 0; r < kCloseReasons.size(); ++r) {
    closed[r] = &closings.Add({{"reason", kCloseReasons[r]}});
  }

  auto& upload_counts = Counters("attnd_feature_map_uploads_total",
                                 "Uploads of learned feature maps, by how they ended.");
  for (std::size_t r = 0; r < kUploadResults.size(); ++r) {
    uploads[r] = &upload_counts.Add({{"result", kUploadResults[r]}});
  }

  prometheus::BuildGauge()
      .Name("attnd_build_info")
      .Help("What is running; the value is always 1.")
      .Register(registry)
      .Add({{"version", build.version},
            {"isa", build.isa},
            {"compiler", build.compiler},
            {"numerics_version", std::to_string(build.numerics_version)}})
      .Set(1);
}

Metrics::Metrics(const BuildInfo& build) : impl_(std::make_unique<Impl>(build)) {}
Metrics::~Metrics() = default;

void Metrics::RpcStarted(RpcMethod method) { impl_->rpcs[Index(method)].started->Increment(); }

void Metrics::RpcHandled(RpcMethod method, int grpc_code, std::int64_t nanos) {
  const bool known = grpc_code >= 0 && static_cast<std::size_t>(grpc_code) < kCodes.size();
  const Impl::Rpc& rpc = impl_->rpcs[Index(method)];
  rpc.handled[known ? static_cast<std::size_t>(grpc_code) : kUnknownCode]->Increment();
  rpc.seconds->Observe(Seconds(nanos));
}

void Metrics::MessageReceived(RpcMethod method) {
  impl_->rpcs[Index(method)].received->Increment();
}

void Metrics::MessageSent(RpcMethod method) { impl_->rpcs[Index(method)].sent->Increment(); }

void Metrics::ObserveMessage(CallKind call, Transport transport, EngineKind engine,
                             std::int64_t nanos) {
  impl_->message_seconds[Index(call)][Index(transport)][Index(engine)]->Observe(Seconds(nanos));
}

void Metrics::ObserveStage(Stage stage, EngineKind engine, std::int64_t nanos) {
  impl_->stage_seconds[Index(stage)][Index(engine)]->Observe(Seconds(nanos));
}

void Metrics::AddTokens(EngineKind engine, std::int64_t count) {
  impl_->tokens[Index(engine)]->Increment(static_cast<double>(count));
}

void Metrics::AddQueries(EngineKind engine, std::int64_t count) {
  impl_->queries[Index(engine)]->Increment(static_cast<double>(count));
}

void Metrics::AddEstimates(const engine::EstimateView& estimates, std::int64_t rows) {
  Tally keys(kKeyBounds);
  Tally errors(kErrorBounds);
  std::array<std::int64_t, kPaths.size()> paths{};
  Tally audits(kErrorBounds);
  std::int64_t audited = 0;
  std::int64_t beyond = 0;
  std::int64_t calibrated = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t path = estimates.paths[row];
    ++paths.at(path);
    calibrated += estimates.calibrated[row];
    keys.Add(static_cast<double>(estimates.keys_evaluated[row]));
    if (path != Index(engine::AnswerPath::kExact)) errors.Add(double{estimates.errors[row]});
    if (estimates.audited_errors != nullptr && estimates.audited_errors[row] >= 0.0F) {
      ++audited;
      audits.Add(double{estimates.audited_errors[row]});
      if (estimates.audited_errors[row] > estimates.errors[row]) ++beyond;
    }
  }
  for (std::size_t p = 0; p < kPaths.size(); ++p) {
    if (paths[p] > 0) impl_->kde_answers[p]->Increment(static_cast<double>(paths[p]));
  }
  if (calibrated > 0) impl_->kde_calibrated->Increment(static_cast<double>(calibrated));
  impl_->Observe(*impl_->kde_keys, keys);
  if (paths[Index(engine::AnswerPath::kExact)] < rows) impl_->Observe(*impl_->kde_errors, errors);
  if (audited > 0) impl_->Observe(*impl_->kde_audits, audits);
  if (beyond > 0) impl_->kde_audits_beyond->Increment(static_cast<double>(beyond));
}

void Metrics::AddRejected(RejectReason reason) { impl_->rejected[Index(reason)]->Increment(); }

void Metrics::AddSessionCreated() { impl_->created->Increment(); }

void Metrics::AddSessionClosed(CloseReason reason) { impl_->closed[Index(reason)]->Increment(); }

void Metrics::AddUpload(UploadResult result) { impl_->uploads[Index(result)]->Increment(); }

void Metrics::SetGaugeSource(std::function<GaugeValues()> source) {
  const std::lock_guard<std::mutex> lock(impl_->source_mutex);
  impl_->source = std::move(source);
}

std::string Metrics::Expose() {
  GaugeValues values;
  {
    const std::lock_guard<std::mutex> lock(impl_->source_mutex);
    if (impl_->source) {
      values = impl_->source();
    }
  }
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  const auto add_gauge = [&families](const char* name, const char* help, std::int64_t value) {
    families.push_back(
        Sampled(name, help, prometheus::MetricType::Gauge, static_cast<double>(value)));
  };
  add_gauge("attnd_sessions", "Sessions held.", values.sessions);
  add_gauge("attnd_state_bytes", "Memory held for all sessions together.", values.state_bytes);
  add_gauge("attnd_inflight_bytes", "Bytes of requests and answers held at this moment.",
            values.inflight_bytes);
  add_gauge("attnd_queue_depth", "Requests that wait or run at this moment.", values.queue_depth);
  add_gauge("attnd_feature_maps", "Learned feature maps held.", values.feature_maps);
  add_gauge("attnd_feature_map_bytes",
            "Memory of learned feature maps, those that are being uploaded included.",
            values.feature_map_bytes);
  AppendProcessFamilies(families);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace attnd::server
