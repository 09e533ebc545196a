#include "server/ready_file.h"

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace attnd::server {

absl::Status WriteReadyFile(const std::string& path, const std::string& grpc_address,
                            const std::string& http_address) {
  const std::string draft = path + ".tmp";
  std::ofstream file(draft, std::ios::trunc);
  file << "grpc=" << grpc_address << "\nhttp=" << http_address << "\n";
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--ready_file: cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
