#include "client/error.h"

#include <array>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "google/rpc/error_details.pb.h"

namespace attnd::client {
namespace {

constexpr char kErrorInfo[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";

absl::Status MakeStatus(int code, const std::string& message) {
  // Both code spaces are google.rpc.Code; absl maps numbers outside of it to UNKNOWN.
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

void AttachDetails(const google::rpc::Status& from, absl::Status* to) {
  for (const auto& detail : from.details()) {
    to->SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
}

template <class Detail>
std::optional<Detail> DetailOf(const absl::Status& status, const char* type_url) {
  const auto payload = status.GetPayload(type_url);
  Detail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

struct ReasonAdvice {
  const char* reason;
  const char* advice;
};

constexpr std::array<ReasonAdvice, 25> kReasonAdvice = {{
    {"BAD_TENSOR", "compare the shapes with the session's configuration (attnctl get)"},
    {"NOT_FINITE",
     "send finite keys and values (zeros where a token is masked) and gates in range"},
    {"FEATURE_OVERFLOW", "scale the keys or values down, or choose another feature map"},
    {"OUTPUT_OVERFLOW", "ask for F32 or BF16 outputs"},
    {"UNSUPPORTED", "see what the server offers (attnctl info)"},
    {"NOT_MERGEABLE", "ask without partials: keep the whole context in one session"},
    {"UNKNOWN", "check the id (attnctl list) or create the session"},
    {"EXPIRED", "create the session again with a longer time-to-live and append its tokens"},
    {"DELETED", "create a new session"},
    {"SESSION_EXISTS", "choose another id, or attach to the existing session"},
    {"STALE_GENERATION", "attach to the session again to learn its generation and positions"},
    {"REPLAY_MISMATCH", "another writer was there first; read the position (attnctl get)"},
    {"WRONG_POSITION", "read the position (attnctl get) and send what comes after it"},
    {"STEP_REPLAY_EXPIRED", "the tokens are there; use attend for outputs"},
    {"POSITION_NOT_REACHED", "append more tokens first, or ask to wait"},
    {"RESPONSE_TOO_LARGE", "ask with fewer queries per call"},
    {"QUEUE_FULL", "the server is busy; send fewer calls at one time"},
    {"INFLIGHT_BYTES", "the server is busy; send fewer or smaller calls at one time"},
    {"TOO_MANY_SESSIONS", "delete sessions that are no longer needed (attnctl list)"},
    {"STATE_BYTES", "delete sessions that are no longer needed (attnctl list)"},
    {"SLOW_READER", "read the answers faster, or use a smaller window"},
    {"UNKNOWN_FEATURE_MAP", "upload the map (attnctl put-feature-map) and try again"},
    {"FEATURE_MAP_BYTES", "delete sessions whose learned maps are no longer needed (attnctl list)"},
    {"STORE_UNAVAILABLE", "try again later; if it stays, look at the server's disk (--data_dir)"},
    {"DAMAGED", "delete the session, create it again and append its tokens"},
}};

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result = MakeStatus(static_cast<int>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) AttachDetails(details, &result);
  return result;
}

absl::Status FromRpc(const google::rpc::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  absl::Status result = MakeStatus(status.code(), status.message());
  AttachDetails(status, &result);
  return result;
}

std::string ErrorReasonOf(const absl::Status& status) {
  const auto info = DetailOf<google::rpc::ErrorInfo>(status, kErrorInfo);
  return info.has_value() ? info->reason() : std::string();
}

std::map<std::string, std::string> ErrorMetadataOf(const absl::Status& status) {
  const auto info = DetailOf<google::rpc::ErrorInfo>(status, kErrorInfo);
  if (!info.has_value()) return {};
  return {info->metadata().begin(), info->metadata().end()};
}

std::optional<std::int64_t> ErrorNumberOf(const absl::Status& status, const std::string& key) {
  const auto metadata = ErrorMetadataOf(status);
  const auto entry = metadata.find(key);
  std::int64_t number = 0;
  if (entry == metadata.end() || !absl::SimpleAtoi(entry->second, &number)) return std::nullopt;
  return number;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto info = DetailOf<google::rpc::RetryInfo>(status, kRetryInfo);
  if (!info.has_value()) return std::nullopt;
  return absl::Seconds(info->retry_delay().seconds()) +
         absl::Nanoseconds(info->retry_delay().nanos());
}

absl::Status WithMessage(const absl::Status& status, const std::string& message) {
  absl::Status result(status.code(), message);
  status.ForEachPayload(
      [&result](absl::string_view url, const absl::Cord& value) { result.SetPayload(url, value); });
  return result;
}

std::string AdviceFor(const absl::Status& status) {
  const std::string reason = ErrorReasonOf(status);
  for (const ReasonAdvice& entry : kReasonAdvice) {
    if (reason == entry.reason) return entry.advice;
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return "check that the server runs and the address is right (--server, ATTND_SERVER)";
    case absl::StatusCode::kDeadlineExceeded:
      return "allow more time (--timeout) or send smaller calls";
    case absl::StatusCode::kUnimplemented:
      return "this server does not offer the call; compare versions (attnctl info)";
    default:
      return "";
  }
}

}  // namespace attnd::client
