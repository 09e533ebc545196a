#include "engine/byte_io.h"

#include <cstddef>
#include <utility>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
// The vector code of this CPU, as digest.cc has it.
#include <xxh_x86dispatch.h>

#include "absl/strings/str_cat.h"

namespace attnd::engine {

std::string ByteWriter::Finish() && {
  const std::uint64_t checksum = XXH3_64bits(bytes_.data(), bytes_.size());
  Put(checksum);
  return std::move(bytes_);
}

std::int64_t ByteReader::Count(std::int64_t item_bytes) {
  const auto count = Get<std::int64_t>();
  if (ok_ && count >= 0 && count <= static_cast<std::int64_t>(left_.size()) / item_bytes) {
    return count;
  }
  ok_ = false;
  return 0;
}

absl::StatusOr<std::span<const char>> CheckedBytes(std::span<const char> stored, const char* what) {
  std::uint64_t checksum = 0;
  if (stored.size() < sizeof checksum) {
    return absl::DataLossError(
        absl::StrCat(what, ": ", stored.size(), " bytes; a checksum alone takes 8"));
  }
  const std::span<const char> bytes = stored.first(stored.size() - sizeof checksum);
  std::memcpy(&checksum, bytes.data() + bytes.size(), sizeof checksum);
  const std::uint64_t computed = XXH3_64bits(bytes.data(), bytes.size());
  if (computed != checksum) {
    return absl::DataLossError(absl::StrCat(what, ": the checksum of ", stored.size(), " bytes is ",
                                            absl::Hex(computed), ", stored is ",
                                            absl::Hex(checksum)));
  }
  return bytes;
}

}  // namespace attnd::engine
