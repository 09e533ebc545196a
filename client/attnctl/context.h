// What every command of attnctl gets: the connection's options and the way to print.
//
// One object per process, used from one thread.
#ifndef ATTND_CLIENT_ATTNCTL_CONTEXT_H_
#define ATTND_CLIENT_ATTNCTL_CONTEXT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "google/protobuf/message.h"

namespace attnd::attnctl {

struct Context {
  std::string server = "127.0.0.1:50051";
  // For a whole command; zero: the library's default.
  absl::Duration timeout = absl::ZeroDuration();
  // JSON on standard output instead of text.
  bool json = false;

  // Few and quick retries: a person is waiting.
  absl::StatusOr<std::shared_ptr<client::Client>> Connect() const;
};

// Prints a message as JSON, with proto field names in lowerCamelCase and fields at their defaults.
void PrintJson(const google::protobuf::Message& message);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_CONTEXT_H_
