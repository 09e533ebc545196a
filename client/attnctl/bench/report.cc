#include "client/attnctl/bench/report.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace attnd::attnctl {
namespace {

struct NamedQuantile {
  const char* name;
  double q;
};

constexpr std::array<NamedQuantile, 4> kQuantiles = {
    {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}}};

double Rate(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

std::string LoopText(const BenchCommand& command) {
  if (command.rate > 0) return absl::StrFormat("open loop at %.6g calls/s", command.rate);
  return "closed loop";
}

}  // namespace

std::string Milliseconds(std::int64_t nanoseconds) {
  return absl::StrFormat("%.3f ms", static_cast<double>(nanoseconds) * 1e-6);
}

std::string ProgressLine(const Totals& totals, double seconds) {
  return absl::StrFormat("%6.1f s  %d calls  %.0f/s  p50 %s  p99 %s  %d failed", seconds,
                         totals.latency.count(), Rate(totals.latency.count(), seconds),
                         Milliseconds(totals.latency.Quantile(0.5)),
                         Milliseconds(totals.latency.Quantile(0.99)), totals.failed);
}

std::string ReportText(const BenchCommand& command, const Totals& totals, double seconds) {
  const LatencyHistogram& latency = totals.latency;
  std::string text =
      absl::StrFormat("%s, %s, %s, %d sessions of %d tokens, %d workers, %d rows per call\n",
                      command.call, command.transport, LoopText(command), command.sessions,
                      command.tokens, command.concurrency, command.batch);
  absl::StrAppendFormat(&text, "calls    %d in %.2f s, %.1f/s, %.0f rows/s\n", latency.count(),
                        seconds, Rate(latency.count(), seconds),
                        Rate(latency.count() * command.batch, seconds));
  absl::StrAppend(&text, "latency ");
  for (const auto& [name, q] : kQuantiles) {
    absl::StrAppend(&text, " ", name, " ", Milliseconds(latency.Quantile(q)), " ");
  }
  absl::StrAppend(&text, " max ", Milliseconds(latency.max()), "\n");
  for (const auto& [name, failure] : totals.failures) {
    absl::StrAppend(&text, "failed   ", failure.count, " ", name, ": ", failure.first.message(),
                    "\n");
  }
  return text;
}

google::protobuf::Struct ReportJson(const BenchCommand& command, const Totals& totals,
                                    double seconds) {
  google::protobuf::Struct report;
  auto& fields = *report.mutable_fields();
  const auto number = [&fields](const char* name, auto value) {
    fields[name].set_number_value(static_cast<double>(value));
  };
  fields["call"].set_string_value(command.call);
  fields["transport"].set_string_value(command.transport);
  fields["engine"].set_string_value(command.session.engine);
  number("sessions", command.sessions);
  number("concurrency", command.concurrency);
  number("tokens", command.tokens);
  number("batch", command.batch);
  number("window", command.window);
  number("offeredRate", command.rate);
  number("seconds", seconds);
  number("calls", totals.latency.count());
  number("callsPerSecond", Rate(totals.latency.count(), seconds));
  number("rowsPerSecond", Rate(totals.latency.count() * command.batch, seconds));
  number("failed", totals.failed);
  auto& latency = *fields["latencySeconds"].mutable_struct_value()->mutable_fields();
  for (const auto& [name, q] : kQuantiles) {
    latency[name].set_number_value(static_cast<double>(totals.latency.Quantile(q)) * 1e-9);
  }
  latency["max"].set_number_value(static_cast<double>(totals.latency.max()) * 1e-9);
  latency["mean"].set_number_value(totals.latency.mean() * 1e-9);
  auto& failures = *fields["failures"].mutable_struct_value()->mutable_fields();
  for (const auto& [name, failure] : totals.failures) {
    failures[name].set_number_value(static_cast<double>(failure.count));
  }
  return report;
}

}  // namespace attnd::attnctl
