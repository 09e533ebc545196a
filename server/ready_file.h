// The file that tells a script where a server with port 0 listens, and that it is ready.
#ifndef ATTND_SERVER_READY_FILE_H_
#define ATTND_SERVER_READY_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace attnd::server {

// Writes the lines `grpc=HOST:PORT` and `http=HOST:PORT` (nothing after http= where there is none).
// The file appears at once and whole. UNAVAILABLE where it cannot be written.
absl::Status WriteReadyFile(const std::string& path, const std::string& grpc_address,
                            const std::string& http_address);

}  // namespace attnd::server

#endif  // ATTND_SERVER_READY_FILE_H_
