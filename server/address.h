// Addresses to listen on, as operators write them: HOST:PORT or [IPV6]:PORT.
#ifndef ATTND_SERVER_ADDRESS_H_
#define ATTND_SERVER_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace attnd::server {

struct Address {
  std::string host;  // an IPv6 address keeps its brackets
  int port = 0;      // 0 to 65535
};

// INVALID_ARGUMENT: not an address; the message completes a sentence that begins with its text,
// such as "it must be HOST:PORT".
absl::StatusOr<Address> ParseAddress(const std::string& text);

}  // namespace attnd::server

#endif  // ATTND_SERVER_ADDRESS_H_
