#include "server/option_types.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/address.h"
#include "server/byte_size.h"
#include "server/logging.h"

namespace attnd::server {
namespace {

constexpr std::array kFsyncPolicies = {std::pair{"always", FsyncPolicy::kAlways},
                                       std::pair{"interval", FsyncPolicy::kInterval},
                                       std::pair{"never", FsyncPolicy::kNever}};
constexpr std::array kFormats = {std::pair{"text", LogFormat::kText},
                                 std::pair{"json", LogFormat::kJson}};
constexpr std::array kLevels = {
    std::pair{"debug", LogLevel::kDebug}, std::pair{"info", LogLevel::kInfo},
    std::pair{"warning", LogLevel::kWarning}, std::pair{"error", LogLevel::kError}};

template <typename Names, typename Enum>
bool FindName(const Names& names, absl::string_view text, Enum* value) {
  for (const auto& [name, enumerator] : names) {
    if (text == name) {
      *value = enumerator;
      return true;
    }
  }
  return false;
}

template <typename Names, typename Enum>
std::string NameOf(const Names& names, Enum value) {
  for (const auto& [name, enumerator] : names) {
    if (enumerator == value) {
      return name;
    }
  }
  return {};
}

template <typename T>
std::string RefuseOutside(T value, T least, T most, T no_limit,
                          const std::function<std::string(T)>& format) {
  if (value >= least && value <= most) {
    return {};
  }
  if (most == no_limit) {
    return absl::StrCat("it must be at least ", format(least));
  }
  return absl::StrCat("it must be from ", format(least), " to ", format(most));
}

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteSize* value, std::string* /*error*/) {
  const std::optional<std::int64_t> bytes = ParseByteSize(std::string(text));
  value->bytes = bytes.value_or(0);
  return bytes.has_value();
}

bool AbslParseFlag(absl::string_view text, FsyncPolicy* value, std::string* /*error*/) {
  return FindName(kFsyncPolicies, text, value);
}

bool AbslParseFlag(absl::string_view text, LogFormat* value, std::string* /*error*/) {
  return FindName(kFormats, text, value);
}

bool AbslParseFlag(absl::string_view text, LogLevel* value, std::string* /*error*/) {
  return FindName(kLevels, text, value);
}

std::string AbslUnparseFlag(ByteSize value) { return FormatByteSize(value.bytes); }
std::string AbslUnparseFlag(FsyncPolicy value) { return NameOf(kFsyncPolicies, value); }
std::string AbslUnparseFlag(LogFormat value) { return NameOf(kFormats, value); }
std::string AbslUnparseFlag(LogLevel value) { return NameOf(kLevels, value); }

const char* Expected(bool) { return "true or false"; }
const char* Expected(std::int64_t) { return "a whole number"; }
const char* Expected(ByteSize) { return "a size such as 8MiB"; }
const char* Expected(absl::Duration) { return "a duration such as 30s or 1h30m"; }
const char* Expected(FsyncPolicy) { return "always, interval or never"; }
const char* Expected(LogFormat) { return "text or json"; }
const char* Expected(LogLevel) { return "debug, info, warning or error"; }
const char* Expected(const std::string&) { return "a text"; }

std::string IntegerRange::Refuse(std::int64_t value) const {
  return RefuseOutside<std::int64_t>(value, least, most, kNoLimit,
                                     [](std::int64_t v) { return absl::StrCat(v); });
}

std::string IntegerRange::Refuse(ByteSize value) const {
  return RefuseOutside<std::int64_t>(value.bytes, least, most, kNoLimit, FormatByteSize);
}

std::string DurationRange::Refuse(absl::Duration value) const {
  return RefuseOutside<absl::Duration>(value, least, absl::Hours(24 * 3650),
                                       absl::InfiniteDuration(), absl::FormatDuration);
}

std::string IsAddress::Refuse(const std::string& value) const {
  if (or_empty && value.empty()) {
    return {};
  }
  return std::string(ParseAddress(value).status().message());
}

std::string OneOf::Refuse(const std::string& value) const {
  if (std::find(names.begin(), names.end(), value) != names.end()) {
    return {};
  }
  return absl::StrCat("it must be one of ", absl::StrJoin(names, ", "));
}

IntegerRange AtLeast(std::int64_t least) { return {least, kNoLimit}; }
DurationRange AtLeast(absl::Duration least) { return {least}; }
IntegerRange Between(std::int64_t least, std::int64_t most) { return {least, most}; }

}  // namespace attnd::server
