// Writing and reading of stored bytes: little-endian numbers without padding, and a checksum at the
// end of what is kept.
//
// A reader never trusts what it reads: beyond the end every number is 0 and ok() is false from then
// on, so that a format is read in a row and checked once. Counts are to be taken by Count(), which
// refuses those that the bytes left cannot hold: nothing is allocated for a number alone.
//
// Neither owns what it reads. Thread-compatible.
#ifndef ATTND_ENGINE_BYTE_IO_H_
#define ATTND_ENGINE_BYTE_IO_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnd::engine {

static_assert(std::endian::native == std::endian::little, "stored numbers are little-endian");

template <typename Number>
concept StoredNumber = std::is_arithmetic_v<Number>;

class ByteWriter {
 public:
  template <StoredNumber Number>
  void Put(Number number) {
    PutAll(std::span<const Number>(&number, 1));
  }
  template <StoredNumber Number>
  void PutAll(std::span<const Number> numbers) {
    bytes_.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  }
  // Ends the bytes with the XXH3 64 of all before.
  std::string Finish() &&;

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const char> bytes) : left_(bytes) {}

  template <StoredNumber Number>
  Number Get() {
    Number number{};
    GetAll(std::span<Number>(&number, 1));
    return number;
  }
  // Fills `numbers`, or leaves them alone where fewer are left.
  template <StoredNumber Number>
  void GetAll(std::span<Number> numbers) {
    if (!ok_ || numbers.size_bytes() > left_.size()) {
      ok_ = false;
      return;
    }
    if (numbers.empty()) return;
    std::memcpy(numbers.data(), left_.data(), numbers.size_bytes());
    left_ = left_.subspan(numbers.size_bytes());
  }
  // A stored std::int64_t that counts things of at least `item_bytes` (at least 1) bytes each, all
  // of which are still to come; 0 where the bytes left cannot hold them.
  std::int64_t Count(std::int64_t item_bytes);

  std::int64_t left() const { return static_cast<std::int64_t>(left_.size()); }
  bool ok() const { return ok_; }
  // Everything was there, and nothing is left.
  bool complete() const { return ok_ && left_.empty(); }

 private:
  std::span<const char> left_;
  bool ok_ = true;
};

// What ByteWriter::Finish() was called on. DataLoss, naming `what`, where the checksum differs.
absl::StatusOr<std::span<const char>> CheckedBytes(std::span<const char> stored, const char* what);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_BYTE_IO_H_
