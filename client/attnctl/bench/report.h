// The result of a load test in words, as a progress line and as JSON. Pure functions.
#ifndef ATTND_CLIENT_ATTNCTL_BENCH_REPORT_H_
#define ATTND_CLIENT_ATTNCTL_BENCH_REPORT_H_

#include <string>

#include "client/attnctl/bench/bench_command.h"
#include "client/attnctl/bench/worker.h"
#include "google/protobuf/struct.pb.h"

namespace attnd::attnctl {

// "0.213 ms".
std::string Milliseconds(std::int64_t nanoseconds);

std::string ProgressLine(const Totals& totals, double seconds);
std::string ReportText(const BenchCommand& command, const Totals& totals, double seconds);
google::protobuf::Struct ReportJson(const BenchCommand& command, const Totals& totals,
                                    double seconds);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_BENCH_REPORT_H_
