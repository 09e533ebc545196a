// attnd_demo: the main job on real input, with its result as a table.
//
// Exit status 0 if every answer is right, 1 otherwise.
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/demo/estimate_job.h"
#include "client/demo/main_job.h"
#include "client/error.h"
#include "client/metrics/http_get.h"
#include "client/metrics/prometheus_text.h"

ABSL_FLAG(std::string, server, "127.0.0.1:50051", "address of the server, HOST:PORT");
ABSL_FLAG(std::string, metrics, "127.0.0.1:9090", "address of its metrics, HOST:PORT");
ABSL_FLAG(std::string, data, "tests/data", "directory of the data");

namespace attnd::demo {
namespace {

// Largest difference allowed, as a part of the largest |output|. Both engines round to f32 (6e-8)
// in every product and sum over a block. Softmax raises the rounding of a score, 16 * 6e-8 for the
// scores of up to 27 here, to the exponent; linear attention averages positive terms and has
// nothing that amplifies.
constexpr double kSoftmaxTolerance = 1e-5;
constexpr double kLinearTolerance = 2e-6;

// Of estimates: what the session aims at. Thresholds are learned from the context's keys, asked as
// queries; other queries may err by more, which the stated errors tell, so that these are held to
// what they say, and errors to a bound of their own.
constexpr double kEstimateTarget = 0.01;
constexpr double kLeastCovered = 0.9;
constexpr double kMostError = 0.05;  // of 95 % of rows

absl::StatusOr<std::vector<client::MetricSample>> Scrape() {
  const auto page = client::HttpGet(absl::GetFlag(FLAGS_metrics), "/metrics");
  if (!page.ok()) return page.status();
  return client::ParsePrometheusText(*page);
}

std::string Latency(const std::vector<client::MetricSample>& before,
                    const std::vector<client::MetricSample>& after, const std::string& call,
                    const std::string& engine) {
  const std::map<std::string, std::string> labels = {{"call", call}, {"engine", engine}};
  const auto buckets = client::Since(client::HistogramOf(before, "attnd_message_seconds", labels),
                                     client::HistogramOf(after, "attnd_message_seconds", labels));
  if (client::Count(buckets) <= 0) return "-";
  return absl::StrFormat("%.2f / %.2f", 1e3 * client::Quantile(buckets, 0.5),
                         1e3 * client::Quantile(buckets, 0.99));
}

absl::StatusOr<bool> RunOne(std::shared_ptr<client::Client> client, const Dataset& data,
                            Kind kind) {
  const std::string engine = kind == Kind::kSoftmax ? "exact" : "linear";
  const double tolerance = kind == Kind::kSoftmax ? kSoftmaxTolerance : kLinearTolerance;
  MainJob job(std::move(client), data, kind);
  const auto before = Scrape();
  if (!before.ok()) return before.status();
  if (const absl::Status status = job.Run(); !status.ok()) return status;
  const auto after = Scrape();
  if (!after.ok()) return after.status();

  const Difference difference = job.CompareWithReference();
  const auto same_bits = job.SameBitsWhenAppendedAtOnce();
  if (!same_bits.ok()) return same_bits.status();
  if (const absl::Status status = job.DeleteSessions(); !status.ok()) return status;

  const bool pass = difference.relative() <= tolerance && *same_bits;
  absl::PrintF("%-10s %-7s %7d %8d  %15s %15s %15s   %8.1e %7.0e  %-5s %s\n", data.name, engine,
               data.keys.rows, job.queries(), Latency(*before, *after, "append", engine),
               Latency(*before, *after, "attend", engine), Latency(*before, *after, "step", engine),
               difference.relative(), tolerance, *same_bits ? "yes" : "NO", pass ? "pass" : "FAIL");
  std::fflush(stdout);
  return pass;
}

absl::StatusOr<bool> RunEstimatesOf(client::Client& client, const Dataset& data) {
  const auto figures = RunEstimates(client, data, kEstimateTarget);
  if (!figures.ok()) return figures.status();
  const bool pass = figures->covered >= kLeastCovered && figures->p95_error <= kMostError;
  absl::PrintF(
      "%-10s %7d %8d   %7.4f / %7.4f   %7.4f / %7.4f   %6.1f %%  %6.1f %%   %6.2f / %6.2f   %s\n",
      data.name, data.keys.rows, figures->queries, figures->median_error, figures->p95_error,
      figures->median_stated, figures->p95_stated, 100 * figures->covered, 100 * figures->keys,
      figures->kde_ms, figures->exact_ms, pass ? "pass" : "FAIL");
  std::fflush(stdout);
  return pass;
}

absl::StatusOr<bool> RunAll() {
  client::ClientOptions options;
  options.target = absl::GetFlag(FLAGS_server);
  const auto client = client::Client::Connect(options);
  if (!client.ok()) return client.status();
  const auto datasets = LoadDatasets(absl::GetFlag(FLAGS_data));
  if (!datasets.ok()) return datasets.status();

  const absl::Time begin = absl::Now();
  const v1::ServerInfo& info = (*client)->server_info();
  absl::PrintF("attnd %s at %s: %s, %d workers\n\n", info.version(), options.target, info.isa(),
               info.workers());
  absl::PrintF("%-10s %-7s %7s %8s  %15s %15s %15s   %16s  %-5s %s\n", "", "", "", "", "append, ms",
               "attend, ms", "step, ms", "max difference", "same", "");
  absl::PrintF("%-10s %-7s %7s %8s  %15s %15s %15s   %8s %7s  %-5s %s\n", "data", "engine",
               "tokens", "queries", "p50 / p99", "p50 / p99", "p50 / p99", "found", "limit", "bits",
               "result");
  bool pass = true;
  for (const Dataset& data : *datasets) {
    for (const Kind kind : {Kind::kSoftmax, Kind::kLinear}) {
      const auto one = RunOne(*client, data, kind);
      if (!one.ok()) return one.status();
      pass = pass && *one;
    }
  }
  absl::PrintF("\n%-10s %7s %8s   %17s   %17s   %8s  %8s   %15s\n", "estimates", "", "", "error",
               "stated error", "", "keys", "all queries, ms");
  absl::PrintF("%-10s %7s %8s   %17s   %17s   %8s  %8s   %15s   %s\n", "(kde)", "tokens", "queries",
               "p50 / p95", "p50 / p95", "covered", "read", "kde / exact", "result");
  for (const Dataset& data : *datasets) {
    const auto one = RunEstimatesOf(**client, data);
    if (!one.ok()) return one.status();
    pass = pass && *one;
  }
  absl::PrintF(
      "\nLatency: attnd_message_seconds as the server counted it, unary calls and messages of "
      "streams.\nmax difference: largest |output - f64 reference| of all queries, divided by the "
      "largest |output|.\nsame bits: as a session that got all tokens in one Append.\nerror: "
      "||output - f64 reference|| in units of the values' spread; covered: rows no worse than "
      "stated.\n%s in %.1f s\n",
      pass ? "PASS" : "FAIL", absl::ToDoubleSeconds(absl::Now() - begin));
  return pass;
}

}  // namespace
}  // namespace attnd::demo

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("streams real tensors into a running attnd and checks every answer");
  absl::ParseCommandLine(argc, argv);
  const auto pass = attnd::demo::RunAll();
  if (!pass.ok()) {
    const std::string advice = attnd::client::AdviceFor(pass.status());
    absl::FPrintF(stderr, "attnd_demo: %s%s%s\n", pass.status().message(),
                  advice.empty() ? "" : "; ", advice);
    return 1;
  }
  return *pass ? 0 : 1;
}
