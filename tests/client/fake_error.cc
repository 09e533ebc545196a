#include "tests/client/fake_error.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace attnd::client {

grpc::Status FakeError(grpc::StatusCode code, const std::string& reason, const std::string& message,
                       const std::map<std::string, std::string>& metadata, int retry_milliseconds) {
  google::rpc::Status details;
  details.set_code(static_cast<int>(code));
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("attnd");
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  details.add_details()->PackFrom(info);
  if (retry_milliseconds >= 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_milliseconds / 1000);
    retry.mutable_retry_delay()->set_nanos(retry_milliseconds % 1000 * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, message, details.SerializeAsString());
}

}  // namespace attnd::client
