// 128-bit XXH3 digests that tell a retried message from another one at the same place, and a
// restored state from one that was saved.
//
// Not cryptographic: they guard against mistakes, not against an adversary. Thread-compatible.
#ifndef ATTND_ENGINE_DIGEST_H_
#define ATTND_ENGINE_DIGEST_H_

#include <cstdint>
#include <memory>

namespace attnd::engine {

struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

// Of bytes that lie together; what a Digester gives for them, without its memory.
Digest DigestOf(const void* data, std::int64_t bytes);

// Digests a stream of bytes; the result does not depend on how the stream was cut into updates.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(Digester&&) noexcept;
  Digester& operator=(Digester&&) noexcept;

  void Update(const void* data, std::int64_t bytes);
  void Update(std::int64_t value) { Update(&value, sizeof value); }
  Digest Result() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_DIGEST_H_
