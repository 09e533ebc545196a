#include "server/error.h"

#include <cstdint>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"

namespace attnd::server {
namespace {

constexpr char kDomain[] = "attnd";
constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

absl::StatusCode CodeOf(v1::ErrorReason reason) {
  switch (reason) {
    case v1::INVALID_FIELD:
    case v1::BAD_TENSOR:
    case v1::NOT_FINITE:
    case v1::FEATURE_OVERFLOW:
    case v1::OUTPUT_OVERFLOW:
    case v1::UNSUPPORTED:
    case v1::NOT_MERGEABLE:
      return absl::StatusCode::kInvalidArgument;
    case v1::UNKNOWN:
    case v1::EXPIRED:
    case v1::DELETED:
      return absl::StatusCode::kNotFound;
    case v1::SESSION_EXISTS:
      return absl::StatusCode::kAlreadyExists;
    case v1::STALE_GENERATION:
    case v1::REPLAY_MISMATCH:
      return absl::StatusCode::kAborted;
    case v1::WRONG_POSITION:
      return absl::StatusCode::kOutOfRange;
    case v1::STEP_REPLAY_EXPIRED:
    case v1::POSITION_NOT_REACHED:
    case v1::UNKNOWN_FEATURE_MAP:
      return absl::StatusCode::kFailedPrecondition;
    case v1::RESPONSE_TOO_LARGE:
    case v1::QUEUE_FULL:
    case v1::INFLIGHT_BYTES:
    case v1::TOO_MANY_SESSIONS:
    case v1::STATE_BYTES:
    case v1::SLOW_READER:
    case v1::FEATURE_MAP_BYTES:
      return absl::StatusCode::kResourceExhausted;
    case v1::SHUTTING_DOWN:
    case v1::STORE_UNAVAILABLE:
      return absl::StatusCode::kUnavailable;
    case v1::DAMAGED:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status Error(v1::ErrorReason reason, const std::string& message,
                   const ErrorMetadata& metadata) {
  google::rpc::ErrorInfo info;
  info.set_reason(v1::ErrorReason_Name(reason));
  info.set_domain(kDomain);
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = value;
  absl::Status status(CodeOf(reason), message);
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status RetryableError(v1::ErrorReason reason, const std::string& message,
                            absl::Duration retry_delay, const ErrorMetadata& metadata) {
  absl::Status status = Error(reason, message, metadata);
  google::rpc::RetryInfo retry;
  const std::int64_t nanos = absl::ToInt64Nanoseconds(retry_delay);
  retry.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
  retry.mutable_retry_delay()->set_nanos(static_cast<std::int32_t>(nanos % 1'000'000'000));
  status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
  return status;
}

absl::Status EngineError(const absl::Status& status) {
  const std::string message(status.message());
  if (absl::IsInvalidArgument(status)) return Error(v1::NOT_FINITE, message);
  if (absl::IsOutOfRange(status)) return Error(v1::FEATURE_OVERFLOW, message);
  if (absl::IsResourceExhausted(status)) return OutOfMemory(message);
  return Error(v1::INTERNAL_ERROR, message);
}

absl::Status OutOfMemory(const std::string& message) {
  return RetryableError(v1::STATE_BYTES, message, absl::Seconds(1));
}

v1::ErrorReason ReasonOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorInfoUrl);
  google::rpc::ErrorInfo info;
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  if (payload.has_value() && info.ParseFromString(std::string(*payload))) {
    v1::ErrorReason_Parse(info.reason(), &reason);
  }
  return reason;
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status rpc;
  rpc.set_code(static_cast<int>(status.code()));
  rpc.set_message(std::string(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    google::protobuf::Any* detail = rpc.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(payload));
  });
  return rpc;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
          ToRpcStatus(status).SerializeAsString()};
}

}  // namespace attnd::server
