#include "server/byte_size.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

struct Unit {
  const char* suffix;
  std::int64_t bytes;
};

// Largest first.
constexpr std::array kUnits = {
    Unit{"TiB", std::int64_t{1} << 40}, Unit{"GiB", std::int64_t{1} << 30},
    Unit{"MiB", std::int64_t{1} << 20}, Unit{"KiB", std::int64_t{1} << 10}};

}  // namespace

std::optional<std::int64_t> ParseByteSize(const std::string& text) {
  std::string number = text;
  std::int64_t unit = 1;
  for (const Unit& candidate : kUnits) {
    if (absl::EndsWithIgnoreCase(text, candidate.suffix)) {
      unit = candidate.bytes;
      number.resize(text.size() - 3);
      break;
    }
  }
  if (unit == 1 && absl::EndsWithIgnoreCase(text, "B")) {
    number.resize(text.size() - 1);
  }
  std::int64_t whole = 0;
  std::int64_t bytes = 0;
  if (absl::SimpleAtoi(number, &whole)) {
    return __builtin_mul_overflow(whole, unit, &bytes) ? std::nullopt
                                                       : std::optional<std::int64_t>(bytes);
  }
  double fraction = 0;
  if (unit == 1 || !absl::SimpleAtod(number, &fraction)) {
    return std::nullopt;
  }
  const double product = fraction * static_cast<double>(unit);
  // Beyond 2^53 a double no longer tells neighbouring bytes apart. NaN fails the comparison.
  if (!(std::abs(product) < 9007199254740992.0) || product != std::floor(product)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(product);
}

std::string FormatByteSize(std::int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0) {
      return absl::StrCat(bytes / unit.bytes, unit.suffix);
    }
  }
  return absl::StrCat(bytes);
}

}  // namespace attnd::server
