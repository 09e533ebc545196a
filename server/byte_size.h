// Sizes in bytes as people write them: 8MiB, 512KiB, 1.5GiB, 4096.
#ifndef ATTND_SERVER_BYTE_SIZE_H_
#define ATTND_SERVER_BYTE_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace attnd::server {

// A number with at most one of the suffixes B, KiB, MiB, GiB, TiB; negative numbers parse, so that
// a caller can name the value it refuses. None: not a size, not a whole number of bytes, or beyond
// 63 bits.
std::optional<std::int64_t> ParseByteSize(const std::string& text);

// The shortest exact form with whole numbers: 8388608 is 8MiB, 1000 is 1000.
std::string FormatByteSize(std::int64_t bytes);

}  // namespace attnd::server

#endif  // ATTND_SERVER_BYTE_SIZE_H_
