#include "client/attnctl/context.h"

#include <cstdio>

#include "google/protobuf/util/json_util.h"

namespace attnd::attnctl {

absl::StatusOr<std::shared_ptr<client::Client>> Context::Connect() const {
  client::ClientOptions options;
  options.target = server;
  options.retry.max_attempts = 5;
  if (timeout > absl::ZeroDuration()) options.default_timeout = timeout;
  return client::Client::Connect(options);
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  std::string text;
  // Fails only for malformed Any messages, which the contract does not have.
  if (google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    std::fputs(text.c_str(), stdout);
  }
}

}  // namespace attnd::attnctl
