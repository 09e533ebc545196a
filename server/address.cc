#include "server/address.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace attnd::server {

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError("it must be HOST:PORT, such as 127.0.0.1:50051");
  }
  Address address;
  address.host = text.substr(0, colon);
  const bool bracketed =
      address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
  const bool host_ok = std::all_of(address.host.begin(), address.host.end(), [bracketed](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' ||
           (bracketed && (c == ':' || c == '[' || c == ']' || c == '%'));
  });
  if (!host_ok) {
    return absl::InvalidArgumentError(
        "its host must be a name, an IPv4 address or an IPv6 address in brackets");
  }
  const std::string port = text.substr(colon + 1);
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  if (!digits || !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return absl::InvalidArgumentError("its port must be a number from 0 to 65535");
  }
  return address;
}

}  // namespace attnd::server
