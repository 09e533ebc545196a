#include "client/duration.h"

#include <algorithm>
#include <cstdint>

namespace attnd::client {
namespace {

constexpr absl::Duration kYear = absl::Hours(24 * 365);
constexpr absl::Duration kLongestProto = absl::Seconds(315'576'000'000);

}  // namespace

std::chrono::nanoseconds ToChrono(absl::Duration duration) {
  return absl::ToChronoNanoseconds(std::clamp(duration, -kYear, kYear));
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  duration = std::clamp(duration, -kLongestProto, kLongestProto);
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

}  // namespace attnd::client
