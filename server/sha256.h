// SHA-256 of bytes that come in pieces.
//
// One object per thread. Throws std::bad_alloc where there is no memory for it.
#ifndef ATTND_SERVER_SHA256_H_
#define ATTND_SERVER_SHA256_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace attnd::server {

using Sha256Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void Update(const std::string& bytes);
  // Of all updates; once.
  Sha256Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// In lower-case hexadecimal.
std::string ToHex(const Sha256Digest& digest);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SHA256_H_
