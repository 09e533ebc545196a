#include "server/metrics.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/process_metrics.h"

namespace attnd::server {
namespace {

using ::testing::AnyOf;
using ::testing::MatchesRegex;
using ::testing::Not;

const BuildInfo kBuild = {
    .version = "1.2.3", .isa = "avx2", .compiler = "clang \"14\"", .numerics_version = 1};

// A page in the text format, read by its rules; breaches fail the test.
struct Page {
  explicit Page(const std::string& text) {
    EXPECT_TRUE(absl::EndsWith(text, "\n"));
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      if (!line.empty()) {
        ReadLine(line);
      }
    }
  }

  void ReadLine(const std::string& line) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (line[0] == '#') {
      ASSERT_EQ(words.size(), 4U) << line;
      if (words[1] == "HELP") {
        EXPECT_TRUE(help.emplace(words[2], words[3]).second) << line;
      } else {
        ASSERT_EQ(words[1], "TYPE") << line;
        EXPECT_TRUE(types.emplace(words[2], words[3]).second) << line;
      }
      return;
    }
    const std::size_t space = line.rfind(' ');
    const std::string series = line.substr(0, space);
    EXPECT_THAT(series, MatchesRegex("[a-z_:][a-z0-9_:]*(\\{.*\\})?"));
    double value = 0;
    ASSERT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
    EXPECT_TRUE(values.emplace(series, value).second) << "twice: " << line;
    order.push_back(series);
  }

  static std::string NameOf(const std::string& series) {
    return series.substr(0, series.find('{'));
  }

  // The family of a series: for histograms without the suffix.
  std::string FamilyOf(const std::string& series) const {
    const std::string name = NameOf(series);
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      if (absl::EndsWith(name, suffix)) {
        std::string family = name.substr(0, name.size() - std::string(suffix).size());
        if (types.contains(family)) {
          return family;
        }
      }
    }
    return name;
  }

  // Labels come in alphabetical order.
  double operator[](const std::string& series) const {
    const auto found = values.find(series);
    if (found == values.end()) {
      ADD_FAILURE() << series << " is missing";
      return -1;
    }
    return found->second;
  }

  std::size_t Count(const std::string& name) const {
    std::size_t count = 0;
    for (const auto& [series, value] : values) {
      count += NameOf(series) == name ? 1U : 0U;
    }
    return count;
  }

  std::map<std::string, std::string> help;
  std::map<std::string, std::string> types;
  std::map<std::string, double> values;
  std::vector<std::string> order;
};

std::string Rpc(const std::string& name, const std::string& method,
                const std::string& type = "unary") {
  return name + "{grpc_method=\"" + method +
         "\",grpc_service=\"attnd.v1.AttentionService\",grpc_type=\"" + type + "\"}";
}

TEST(MetricsTest, HasExactlyTheDocumentedFamilies) {
  Metrics metrics(kBuild);
  const Page page(metrics.Expose());
  const std::map<std::string, std::string> expected = {
      {"grpc_server_started_total", "counter"},
      {"grpc_server_handled_total", "counter"},
      {"grpc_server_handling_seconds", "histogram"},
      {"grpc_server_msg_received_total", "counter"},
      {"grpc_server_msg_sent_total", "counter"},
      {"attnd_message_seconds", "histogram"},
      {"attnd_stage_seconds", "histogram"},
      {"attnd_tokens_appended_total", "counter"},
      {"attnd_queries_total", "counter"},
      {"attnd_kde_answers_total", "counter"},
      {"attnd_kde_calibrated_total", "counter"},
      {"attnd_kde_keys_evaluated", "histogram"},
      {"attnd_kde_stated_error", "histogram"},
      {"attnd_kde_audited_error", "histogram"},
      {"attnd_kde_audits_beyond_stated_total", "counter"},
      {"attnd_rejected_total", "counter"},
      {"attnd_sessions_created_total", "counter"},
      {"attnd_sessions_closed_total", "counter"},
      {"attnd_sessions", "gauge"},
      {"attnd_state_bytes", "gauge"},
      {"attnd_inflight_bytes", "gauge"},
      {"attnd_queue_depth", "gauge"},
      {"attnd_feature_map_uploads_total", "counter"},
      {"attnd_feature_maps", "gauge"},
      {"attnd_feature_map_bytes", "gauge"},
      {"attnd_build_info", "gauge"},
      {"process_cpu_seconds_total", "counter"},
      {"process_resident_memory_bytes", "gauge"},
      {"process_virtual_memory_bytes", "gauge"},
      {"process_open_fds", "gauge"},
      {"process_max_fds", "gauge"},
      {"process_start_time_seconds", "gauge"},
      {"process_threads", "gauge"},
  };
  EXPECT_EQ(page.types, expected);
}

TEST(MetricsTest, KeepsTheRulesOfNamesAndHelp) {
  Metrics metrics(kBuild);
  const Page page(metrics.Expose());
  for (const auto& [name, type] : page.types) {
    EXPECT_TRUE(page.help.contains(name)) << name;
    EXPECT_EQ(absl::EndsWith(name, "_total"), type == "counter") << name;
    EXPECT_FALSE(absl::StrContains(name, type)) << name;
    EXPECT_THAT(name, Not(AnyOf(MatchesRegex(".*_(ms|us|ns|milliseconds|microseconds)"),
                                MatchesRegex(".*_(kib|mib|kilobytes)"))));
  }
  std::set<std::string> finished;
  std::string current;
  for (const std::string& series : page.order) {
    const std::string family = page.FamilyOf(series);
    EXPECT_TRUE(page.types.contains(family)) << series;
    if (family != current) {
      EXPECT_TRUE(finished.insert(family).second) << "not in one piece: " << family;
      current = family;
    }
  }
}

TEST(MetricsTest, EverySeriesIsThereWithZeroFromTheStart) {
  Metrics metrics(kBuild);
  const Page page(metrics.Expose());
  EXPECT_EQ(page.Count("grpc_server_started_total"), 12U);
  EXPECT_EQ(page.Count("grpc_server_handled_total"), 12U * 17U);
  EXPECT_EQ(page.Count("grpc_server_handling_seconds_count"), 12U);
  EXPECT_EQ(page.Count("attnd_message_seconds_count"), 3U * 2U * 3U);
  EXPECT_EQ(page.Count("attnd_stage_seconds_count"), 4U * 3U);
  EXPECT_EQ(page.Count("attnd_tokens_appended_total"), 3U);
  EXPECT_EQ(page.Count("attnd_queries_total"), 3U);
  EXPECT_EQ(page.Count("attnd_kde_answers_total"), 4U);
  EXPECT_EQ(page.Count("attnd_rejected_total"), 8U);
  EXPECT_EQ(page.Count("attnd_sessions_created_total"), 1U);
  EXPECT_EQ(page.Count("attnd_sessions_closed_total"), 2U);
  EXPECT_EQ(page.Count("attnd_feature_map_uploads_total"), 5U);
  for (const auto& [series, value] : page.values) {
    if (!absl::StartsWith(series, "process_") && !absl::StartsWith(series, "attnd_build_info")) {
      EXPECT_EQ(value, 0) << series;
    }
  }
}

TEST(MetricsTest, BuildInfoSaysWhatRuns) {
  Metrics metrics(kBuild);
  const Page page(metrics.Expose());
  EXPECT_EQ(page["attnd_build_info{compiler=\"clang \\\"14\\\"\",isa=\"avx2\","
                 "numerics_version=\"1\",version=\"1.2.3\"}"],
            1);
}

TEST(MetricsTest, BucketsDoubleFromOneMicrosecondToBeyondTenSeconds) {
  Metrics metrics(kBuild);
  const Page page(metrics.Expose());
  std::vector<double> bounds;
  for (const std::string& series : page.order) {
    const std::string prefix = "attnd_stage_seconds_bucket{engine=\"exact\",stage=\"queue\",le=\"";
    if (absl::StartsWith(series, prefix)) {
      double bound = 0;
      ASSERT_TRUE(absl::SimpleAtod(series.substr(prefix.size(), series.size() - prefix.size() - 2),
                                   &bound));
      bounds.push_back(bound);
    }
  }
  ASSERT_EQ(bounds.size(), 26U);
  EXPECT_DOUBLE_EQ(bounds[0], 1e-6);
  for (std::size_t i = 1; i + 1 < bounds.size(); ++i) {
    EXPECT_NEAR(bounds[i] / bounds[i - 1], 2, 1e-5);
  }
  EXPECT_GT(bounds[24], 10);
  EXPECT_GT(bounds[25], 1e300);  // +Inf
}

TEST(MetricsTest, AnRpcIsCountedWithItsCode) {
  Metrics metrics(kBuild);
  metrics.RpcStarted(RpcMethod::kAttend);
  metrics.RpcStarted(RpcMethod::kAttend);
  metrics.RpcHandled(RpcMethod::kAttend, 0, 1'500'000);
  metrics.RpcHandled(RpcMethod::kAttend, 8, 500'000);
  metrics.RpcHandled(RpcMethod::kAttend, 99, 0);
  metrics.RpcHandled(RpcMethod::kAttend, -1, -5);
  metrics.RpcStarted(RpcMethod::kStream);
  metrics.MessageReceived(RpcMethod::kStream);
  metrics.MessageReceived(RpcMethod::kStream);
  metrics.MessageSent(RpcMethod::kStream);
  const Page page(metrics.Expose());
  EXPECT_EQ(page[Rpc("grpc_server_started_total", "Attend")], 2);
  EXPECT_EQ(page[Rpc("grpc_server_started_total", "Step")], 0);
  const auto handled = [&page](const std::string& code) {
    return page["grpc_server_handled_total{grpc_code=\"" + code +
                "\",grpc_method=\"Attend\",grpc_service=\"attnd.v1.AttentionService\",grpc_type="
                "\"unary\"}"];
  };
  EXPECT_EQ(handled("OK"), 1);
  EXPECT_EQ(handled("ResourceExhausted"), 1);
  EXPECT_EQ(handled("Unknown"), 2);
  EXPECT_EQ(page[Rpc("grpc_server_handling_seconds_count", "Attend")], 4);
  EXPECT_NEAR(page[Rpc("grpc_server_handling_seconds_sum", "Attend")], 0.002, 1e-9);
  EXPECT_EQ(page[Rpc("grpc_server_started_total", "Stream", "bidi_stream")], 1);
  EXPECT_EQ(page[Rpc("grpc_server_msg_received_total", "Stream", "bidi_stream")], 2);
  EXPECT_EQ(page[Rpc("grpc_server_msg_sent_total", "Stream", "bidi_stream")], 1);
}

TEST(MetricsTest, EveryMethodAndCodeHasItsOwnSeries) {
  Metrics metrics(kBuild);
  for (int method = 0; method < 12; ++method) {
    for (int code = 0; code < 17; ++code) {
      metrics.RpcHandled(static_cast<RpcMethod>(method), code, 1);
    }
  }
  const Page page(metrics.Expose());
  for (const auto& [series, value] : page.values) {
    if (Page::NameOf(series) == "grpc_server_handled_total") {
      EXPECT_EQ(value, 1) << series;
    }
  }
}

TEST(MetricsTest, ObservationsGoToTheirSeriesAndBucket) {
  Metrics metrics(kBuild);
  metrics.ObserveMessage(CallKind::kStep, Transport::kStream, EngineKind::kLinear, 3'000);
  metrics.ObserveMessage(CallKind::kAppend, Transport::kUnary, EngineKind::kExact, 1'000);
  metrics.ObserveStage(Stage::kCompute, EngineKind::kLinear, 60'000'000'000);
  const Page page(metrics.Expose());
  const std::string step = "{call=\"step\",engine=\"linear\",transport=\"stream\"";
  EXPECT_EQ(page["attnd_message_seconds_bucket" + step + ",le=\"2e-06\"}"], 0);
  EXPECT_EQ(page["attnd_message_seconds_bucket" + step + ",le=\"4e-06\"}"], 1);
  EXPECT_EQ(page["attnd_message_seconds_bucket" + step + ",le=\"+Inf\"}"], 1);
  EXPECT_EQ(page["attnd_message_seconds_count{call=\"append\",engine=\"exact\",transport="
                 "\"unary\"}"],
            1);
  // A bound belongs to its bucket.
  EXPECT_EQ(page["attnd_message_seconds_bucket{call=\"append\",engine=\"exact\",transport="
                 "\"unary\",le=\"1e-06\"}"],
            1);
  EXPECT_EQ(page["attnd_stage_seconds_sum{engine=\"linear\",stage=\"compute\"}"], 60);
  EXPECT_EQ(page["attnd_stage_seconds_bucket{engine=\"linear\",stage=\"compute\",le=\"+Inf\"}"], 1);
  EXPECT_EQ(page["attnd_stage_seconds_count{engine=\"exact\",stage=\"compute\"}"], 0);
}

TEST(MetricsTest, HistogramsAreCumulativeAndEndAtTheirCount) {
  Metrics metrics(kBuild);
  for (std::int64_t nanos = 100; nanos < 100'000'000'000; nanos *= 3) {
    metrics.ObserveStage(Stage::kEncode, EngineKind::kExact, nanos);
  }
  const Page page(metrics.Expose());
  double last = 0;
  for (const std::string& series : page.order) {
    if (absl::StartsWith(series, "attnd_stage_seconds_bucket{engine=\"exact\",stage=\"encode\"")) {
      EXPECT_GE(page[series], last) << series;
      last = page[series];
    }
  }
  EXPECT_GT(last, 10);
  EXPECT_EQ(page["attnd_stage_seconds_count{engine=\"exact\",stage=\"encode\"}"], last);
}

TEST(MetricsTest, CountersCount) {
  Metrics metrics(kBuild);
  metrics.AddTokens(EngineKind::kExact, 64);
  metrics.AddTokens(EngineKind::kExact, 1);
  metrics.AddQueries(EngineKind::kLinear, 4096);
  metrics.AddRejected(RejectReason::kQueueFull);
  metrics.AddRejected(RejectReason::kShuttingDown);
  metrics.AddSessionCreated();
  metrics.AddSessionClosed(CloseReason::kExpired);
  const Page page(metrics.Expose());
  EXPECT_EQ(page["attnd_tokens_appended_total{engine=\"exact\"}"], 65);
  EXPECT_EQ(page["attnd_queries_total{engine=\"linear\"}"], 4096);
  EXPECT_EQ(page["attnd_rejected_total{reason=\"QUEUE_FULL\"}"], 1);
  EXPECT_EQ(page["attnd_rejected_total{reason=\"SHUTTING_DOWN\"}"], 1);
  EXPECT_EQ(page["attnd_rejected_total{reason=\"SLOW_READER\"}"], 0);
  EXPECT_EQ(page["attnd_sessions_created_total"], 1);
  EXPECT_EQ(page["attnd_sessions_closed_total{reason=\"expired\"}"], 1);
  EXPECT_EQ(page["attnd_sessions_closed_total{reason=\"deleted\"}"], 0);
}

TEST(MetricsTest, EstimatesAreCountedByTheRow) {
  Metrics metrics(kBuild);
  std::vector<float> errors = {0.0F, 0.03F, 0.003F, INFINITY};
  std::vector<std::int64_t> keys = {5000, 64, 65, 0};
  std::vector<std::uint8_t> paths = {0, 1, 2, 1};
  std::vector<std::uint8_t> calibrated = {1, 1, 0, 0};
  engine::EstimateView view;
  view.errors = errors.data();
  view.keys_evaluated = keys.data();
  view.paths = paths.data();
  view.calibrated = calibrated.data();
  metrics.AddEstimates(view, 4);
  std::vector<float> audited = {-1.0F, 0.04F, 0.002F, -1.0F};
  view.audited_errors = audited.data();
  metrics.AddEstimates(view, 1);
  const Page before(metrics.Expose());
  EXPECT_EQ(before["attnd_kde_audited_error_count"], 0);
  const Page page(metrics.Expose());
  EXPECT_EQ(page["attnd_kde_answers_total{path=\"exact\"}"], 2);
  EXPECT_EQ(page["attnd_kde_answers_total{path=\"index\"}"], 2);
  EXPECT_EQ(page["attnd_kde_answers_total{path=\"certified\"}"], 1);
  EXPECT_EQ(page["attnd_kde_answers_total{path=\"paper\"}"], 0);
  EXPECT_EQ(page["attnd_kde_calibrated_total"], 3);
  EXPECT_EQ(page["attnd_kde_keys_evaluated_count"], 5);
  EXPECT_EQ(page["attnd_kde_keys_evaluated_sum"], 10129);
  EXPECT_EQ(page["attnd_kde_keys_evaluated_bucket{le=\"64\"}"], 2) << "bounds belong to buckets";
  EXPECT_EQ(page["attnd_kde_keys_evaluated_bucket{le=\"256\"}"], 3);
  EXPECT_EQ(page["attnd_kde_stated_error_count"], 3) << "of rows that were estimated";
  EXPECT_NEAR(page["attnd_kde_stated_error_sum"], 0.033, 1e-6) << "an infinity spoils no sum";
  EXPECT_EQ(page["attnd_kde_stated_error_bucket{le=\"0.005\"}"], 1);
  EXPECT_EQ(page["attnd_kde_stated_error_bucket{le=\"0.05\"}"], 2);
  EXPECT_EQ(page["attnd_kde_stated_error_bucket{le=\"1\"}"], 2);
  metrics.AddEstimates(view, 4);
  const Page after(metrics.Expose());
  EXPECT_EQ(after["attnd_kde_audited_error_count"], 2);
  EXPECT_NEAR(after["attnd_kde_audited_error_sum"], 0.042, 1e-6);
  EXPECT_EQ(after["attnd_kde_audits_beyond_stated_total"], 1);
}

TEST(MetricsTest, GaugesAreReadAtCollection) {
  Metrics metrics(kBuild);
  GaugeValues values = {
      .sessions = 3, .state_bytes = std::int64_t{5} << 40, .inflight_bytes = 7, .queue_depth = 9};
  metrics.SetGaugeSource([&values] { return values; });
  Page page(metrics.Expose());
  EXPECT_EQ(page["attnd_sessions"], 3);
  EXPECT_EQ(page["attnd_state_bytes"], 5497558138880.0);
  EXPECT_EQ(page["attnd_inflight_bytes"], 7);
  EXPECT_EQ(page["attnd_queue_depth"], 9);
  values.sessions = 4;
  EXPECT_EQ(Page(metrics.Expose())["attnd_sessions"], 4);
  metrics.SetGaugeSource({});
  EXPECT_EQ(Page(metrics.Expose())["attnd_sessions"], 0);
}

TEST(MetricsTest, NoUpdateIsLostBetweenThreadsAndCollections) {
  Metrics metrics(kBuild);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 2000; ++i) {
        metrics.AddTokens(EngineKind::kExact, 1);
        metrics.ObserveStage(Stage::kQueue, EngineKind::kExact, 1000);
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    metrics.Expose();
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const Page page(metrics.Expose());
  EXPECT_EQ(page["attnd_tokens_appended_total{engine=\"exact\"}"], 8000);
  EXPECT_EQ(page["attnd_stage_seconds_count{engine=\"exact\",stage=\"queue\"}"], 8000);
}

TEST(ProcessMetricsTest, DescribesThisProcess) {
  const ProcessMetrics before = ReadProcessMetrics();
  EXPECT_GT(before.resident_bytes, 1 << 20);
  EXPECT_GT(before.virtual_bytes, before.resident_bytes);
  EXPECT_GE(before.threads, 1);
  EXPECT_GT(before.max_fds, before.open_fds);
  EXPECT_LE(before.start_time_seconds, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) + 5);
  std::vector<std::ifstream> files;
  for (int i = 0; i < 5; ++i) {
    files.emplace_back("/dev/null");
  }
  EXPECT_EQ(ReadProcessMetrics().open_fds, before.open_fds + 5);
  // Spent, not elapsed: on a busy machine 60 ms may pass without a tick of our own.
  const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 20;
  while (std::clock() < end) {
  }
  EXPECT_GT(ReadProcessMetrics().cpu_seconds, before.cpu_seconds);
}

TEST(ProcessMetricsTest, AnUnreadableProcGivesZeros) {
  const ProcessMetrics metrics = ReadProcessMetrics("/nowhere");
  EXPECT_EQ(metrics.resident_bytes, 0);
  EXPECT_EQ(metrics.open_fds, 0);
  EXPECT_EQ(metrics.threads, 0);
}

}  // namespace
}  // namespace attnd::server
