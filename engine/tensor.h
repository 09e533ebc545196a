// Element types and non-owning tensor views.
//
// Views never own memory: whoever makes one keeps the bytes alive and unchanged while it is used.
// Sizes are 64-bit. Safe to use from any thread.
#ifndef ATTND_ENGINE_TENSOR_H_
#define ATTND_ENGINE_TENSOR_H_

#include <cstdint>
#include <optional>

namespace attnd::engine {

enum class DataType { kF32, kF16, kBf16 };

constexpr std::int64_t ElementBytes(DataType type) { return type == DataType::kF32 ? 4 : 2; }

// A row-major run of elements of one type; `data` is aligned to the element size.
struct ConstElements {
  DataType type = DataType::kF32;
  const void* data = nullptr;
  std::int64_t count = 0;
};

// a * b for sizes of at least 0; nothing where the product leaves 64 bits.
constexpr std::optional<std::int64_t> CheckedMultiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

constexpr std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_TENSOR_H_
