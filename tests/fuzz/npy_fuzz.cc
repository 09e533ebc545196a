// .npy files: refused, or a view that lies inside the bytes and is as large as its shape says.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "client/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const char* bytes = reinterpret_cast<const char*>(data);
  const auto array = attnd::client::ParseNpy(bytes, size);
  if (!array.ok()) return 0;
  std::uint64_t elements = 1;
  for (const std::int64_t dimension : array->shape) {
    if (dimension < 0) std::abort();
    elements *= static_cast<std::uint64_t>(dimension);
  }
  const std::uint64_t element = array->type == attnd::client::NpyType::kF32   ? 4
                                : array->type == attnd::client::NpyType::kF16 ? 2
                                                                              : 1;
  if (array->data.size() != elements * element) std::abort();
  if (!array->data.empty() &&
      (array->data.data() < bytes || array->data.data() + array->data.size() > bytes + size)) {
    std::abort();
  }
  const auto tokens = attnd::client::TokensOf(*array, "fuzz");
  if (tokens.ok()) {
    const auto again = attnd::client::FormatNpy(*tokens);
    if (again.ok() && !attnd::client::ParseNpy(again->data(), again->size()).ok()) std::abort();
  }
  return 0;
}
