#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "client/attnctl/bench/latency_histogram.h"
#include "client/attnctl/bench/report.h"
#include "client/attnctl/bench/schedule.h"

namespace attnd::attnctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LatencyHistogram, SmallValuesAreExact) {
  LatencyHistogram histogram;
  for (std::int64_t value = 2000; value >= 1; --value) histogram.Record(value);
  EXPECT_EQ(histogram.count(), 2000);
  EXPECT_EQ(histogram.Quantile(0.0005), 1);
  EXPECT_EQ(histogram.Quantile(0.5), 1000);
  EXPECT_EQ(histogram.Quantile(0.99), 1980);
  EXPECT_EQ(histogram.Quantile(1.0), 2000);
  EXPECT_DOUBLE_EQ(histogram.mean(), 1000.5);
}

TEST(LatencyHistogram, QuantilesAgreeWithTheSortedValues) {
  std::mt19937_64 random(3);
  std::lognormal_distribution<double> distribution(12, 2);
  std::vector<std::int64_t> values;
  LatencyHistogram histogram;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(static_cast<std::int64_t>(distribution(random)));
    histogram.Record(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double q : {0.001, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<std::size_t>(std::ceil(q * 20000)) - 1;
    const auto exact = static_cast<double>(values[rank]);
    const auto found = static_cast<double>(histogram.Quantile(q));
    EXPECT_GE(found, exact) << q;
    EXPECT_LE(found, exact * 1.001 + 1) << q;
  }
  EXPECT_EQ(histogram.max(), values.back());
  EXPECT_EQ(histogram.Quantile(1.0), values.back());
}

TEST(LatencyHistogram, Extremes) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.mean(), 0);
  histogram.Record(-5);
  EXPECT_EQ(histogram.max(), 0);
  histogram.Record(INT64_MAX);
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.Quantile(1.0), INT64_MAX);
  for (int bit = 0; bit < 63; ++bit) {
    LatencyHistogram one;
    const std::int64_t value = std::int64_t{1} << bit;
    one.Record(value);
    one.Record(INT64_MAX);
    EXPECT_GE(one.Quantile(0.5), value);
    EXPECT_LE(one.Quantile(0.5) - value, value / 1000);
  }
}

TEST(LatencyHistogram, TheEndOfTheLastBucketOverflowed) {
  LatencyHistogram histogram;
  histogram.Record(INT64_MAX - 1);
  EXPECT_EQ(histogram.Quantile(1.0), INT64_MAX - 1);
}

TEST(LatencyHistogram, MergesLikeOne) {
  LatencyHistogram a;
  LatencyHistogram b;
  LatencyHistogram both;
  for (std::int64_t i = 0; i < 1000; ++i) {
    (i % 3 == 0 ? a : b).Record(i * i);
    both.Record(i * i);
  }
  a.Merge(b);
  EXPECT_EQ(a.count(), both.count());
  EXPECT_EQ(a.max(), both.max());
  EXPECT_EQ(a.mean(), both.mean());
  for (const double q : {0.1, 0.5, 0.99}) EXPECT_EQ(a.Quantile(q), both.Quantile(q));
}

TEST(BenchSchedule, ClosedLoopCallsAtOnceUntilTheEnd) {
  const Schedule::Clock::time_point begin{seconds(100)};
  Schedule schedule({0, 3, seconds(10)}, begin);
  EXPECT_EQ(schedule.Next(begin + seconds(1)), begin + seconds(1));
  EXPECT_EQ(schedule.Next(begin + seconds(2)), begin + seconds(2));
  EXPECT_EQ(schedule.Next(begin + seconds(10)), std::nullopt);

  Schedule counted({0, 2, {}}, begin);
  EXPECT_TRUE(counted.Next(begin + seconds(1000)).has_value());
  EXPECT_TRUE(counted.Next(begin + seconds(1000)).has_value());
  EXPECT_FALSE(counted.Next(begin + seconds(1000)).has_value());
}

TEST(BenchSchedule, OpenLoopIgnoresHowLongCallsTook) {
  const Schedule::Clock::time_point begin{seconds(100)};
  Schedule schedule({100, 0, milliseconds(35)}, begin);
  // The second call is asked for late; it was due 10 ms after the first all the same.
  EXPECT_EQ(schedule.Next(begin), begin);
  EXPECT_EQ(schedule.Next(begin + seconds(5)), begin + milliseconds(10));
  EXPECT_EQ(schedule.Next(begin + seconds(5)), begin + milliseconds(20));
  EXPECT_EQ(schedule.Next(begin), begin + milliseconds(30));
  EXPECT_EQ(schedule.Next(begin), std::nullopt);
}

TEST(BenchSchedule, StopEndsIt) {
  Schedule schedule({0, 0, {}}, Schedule::Clock::time_point{});
  EXPECT_TRUE(schedule.Next({}).has_value());
  schedule.Stop();
  EXPECT_FALSE(schedule.Next({}).has_value());
}

TEST(BenchReport, SaysWhatWasMeasured) {
  BenchCommand command;
  command.batch = 10;
  command.rate = 250;
  Totals totals;
  for (int i = 0; i < 100; ++i) totals.latency.Record(1'000'000);
  totals.failed = 2;
  totals.failures["RESOURCE_EXHAUSTED QUEUE_FULL"] = {2, absl::ResourceExhaustedError("busy")};
  const std::string text = ReportText(command, totals, 2.0);
  EXPECT_NE(text.find("open loop at 250 calls/s"), std::string::npos) << text;
  EXPECT_NE(text.find("100 in 2.00 s, 50.0/s, 500 rows/s"), std::string::npos) << text;
  EXPECT_NE(text.find("p99.9 1.000 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("2 RESOURCE_EXHAUSTED QUEUE_FULL: busy"), std::string::npos) << text;
  const auto json = ReportJson(command, totals, 2.0);
  EXPECT_EQ(json.fields().at("callsPerSecond").number_value(), 50);
  EXPECT_EQ(json.fields().at("failed").number_value(), 2);
  EXPECT_NEAR(json.fields().at("latencySeconds").struct_value().fields().at("p50").number_value(),
              1e-3, 1e-9);
}

}  // namespace
}  // namespace attnd::attnctl
