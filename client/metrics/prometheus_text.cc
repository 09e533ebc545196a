#include "client/metrics/prometheus_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t'; }

bool IsName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == ':';
}

class LineParser {
 public:
  explicit LineParser(std::string_view line) : line_(line) {}

  bool Parse(MetricSample* sample) {
    sample->name = TakeName();
    if (sample->name.empty()) return false;
    SkipSpace();
    if (Take('{') && !ParseLabels(&sample->labels)) return false;
    SkipSpace();
    return ParseValue(TakeWord(), &sample->value) && ParseTimestamp();
  }

 private:
  bool ParseLabels(std::map<std::string, std::string>* labels) {
    for (;;) {
      SkipSpace();
      if (Take('}')) return true;
      std::string key = TakeName();
      std::string value;
      SkipSpace();
      if (key.empty() || !Take('=')) return false;
      SkipSpace();
      if (!TakeQuoted(&value)) return false;
      labels->emplace(std::move(key), std::move(value));
      SkipSpace();
      if (!Take(',') && (at_ == line_.size() || line_[at_] != '}')) return false;
    }
  }

  bool TakeQuoted(std::string* value) {
    if (!Take('"')) return false;
    while (at_ < line_.size()) {
      const char c = line_[at_++];
      if (c == '"') return true;
      if (c != '\\') {
        *value += c;
        continue;
      }
      if (at_ == line_.size()) return false;
      const char escaped = line_[at_++];
      *value += escaped == 'n' ? '\n' : escaped;
    }
    return false;
  }

  // Inf and NaN are written as +Inf, -Inf and NaN, all of which this reads.
  static bool ParseValue(std::string_view word, double* value) {
    return !word.empty() && absl::SimpleAtod(std::string(word), value);
  }

  bool ParseTimestamp() {
    SkipSpace();
    const std::string_view word = TakeWord();
    SkipSpace();
    std::int64_t milliseconds = 0;
    return at_ == line_.size() &&
           (word.empty() || absl::SimpleAtoi(std::string(word), &milliseconds));
  }

  void SkipSpace() {
    while (at_ < line_.size() && IsSpace(line_[at_])) ++at_;
  }

  bool Take(char wanted) {
    if (at_ == line_.size() || line_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  std::string TakeName() {
    const std::size_t begin = at_;
    while (at_ < line_.size() && IsName(line_[at_])) ++at_;
    return std::string(line_.substr(begin, at_ - begin));
  }

  std::string_view TakeWord() {
    const std::size_t begin = at_;
    while (at_ < line_.size() && !IsSpace(line_[at_])) ++at_;
    return line_.substr(begin, at_ - begin);
  }

  std::string_view line_;
  std::size_t at_ = 0;
};

bool Carries(const MetricSample& sample, const std::map<std::string, std::string>& labels) {
  return std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
    const auto found = sample.labels.find(label.first);
    return found != sample.labels.end() && found->second == label.second;
  });
}

}  // namespace

absl::StatusOr<std::vector<MetricSample>> ParsePrometheusText(const std::string& page) {
  std::vector<MetricSample> samples;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < page.size();) {
    const std::size_t end = std::min(page.find('\n', begin), page.size());
    std::string_view line = std::string_view(page).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    while (!line.empty() && IsSpace(line.front())) line.remove_prefix(1);
    if (line.empty() || line.front() == '#') continue;
    MetricSample sample;
    if (!LineParser(line).Parse(&sample)) {
      return absl::InvalidArgumentError(
          absl::StrCat("metrics page: line ", number, " is malformed"));
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

CumulativeBuckets HistogramOf(const std::vector<MetricSample>& samples, const std::string& name,
                              const std::map<std::string, std::string>& labels) {
  CumulativeBuckets buckets;
  for (const MetricSample& sample : samples) {
    if (sample.name != name + "_bucket" || !Carries(sample, labels)) continue;
    const auto bound = sample.labels.find("le");
    double upper = 0;
    if (bound == sample.labels.end() || !absl::SimpleAtod(bound->second, &upper)) continue;
    buckets[upper] += sample.value;
  }
  return buckets;
}

CumulativeBuckets Since(const CumulativeBuckets& before, const CumulativeBuckets& after) {
  CumulativeBuckets difference = after;
  for (auto& [bound, count] : difference) {
    const auto earlier = before.find(bound);
    if (earlier != before.end()) count -= earlier->second;
  }
  return difference;
}

double Count(const CumulativeBuckets& buckets) {
  return buckets.empty() ? 0 : buckets.rbegin()->second;
}

double Quantile(const CumulativeBuckets& buckets, double q) {
  const double rank = q * Count(buckets);
  if (Count(buckets) <= 0) return std::numeric_limits<double>::quiet_NaN();
  double lower = 0;
  double below = 0;
  for (const auto& [upper, count] : buckets) {
    if (count >= rank && count > below) {
      if (std::isinf(upper)) return lower;
      return lower + (upper - lower) * (rank - below) / (count - below);
    }
    if (!std::isinf(upper)) lower = upper;
    below = count;
  }
  return lower;
}

}  // namespace attnd::client
