#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/efficient/efficient_engine.h"
#include "engine/engine_config.h"
#include "engine/exact/exact_engine.h"
#include "engine/gated/gated_engine.h"
#include "engine/linear/linear_engine.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kMaxSize = 4096;

// Floats that one token (or query) may have in one layer: 4 MB, so that a
// block of keys and values is at most 512 MB.
constexpr std::int64_t kMaxRowFloats = std::int64_t{1} << 20;

absl::Status CheckSize(const char* name, std::int64_t size) {
  if (size >= 1 && size <= kMaxSize) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", size, "; it must be 1 to ", kMaxSize));
}

// Requires a and b within kMaxSize.
absl::Status CheckRow(const char* names, std::int64_t a, std::int64_t b) {
  if (a * b <= kMaxRowFloats) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(names, " is ", a * b, "; it must be at most ", kMaxRowFloats));
}

absl::Status CheckShape(const LayerShape& shape) {
  absl::Status status = CheckSize("kv_heads", shape.kv_heads);
  status.Update(CheckSize("query_heads", shape.query_heads));
  status.Update(CheckSize("key_dim", shape.key_dim));
  status.Update(CheckSize("value_dim", shape.value_dim));
  if (!status.ok()) return status;
  if (shape.query_heads % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("query_heads is ", shape.query_heads,
                                                   "; it must be a multiple of kv_heads, which is ",
                                                   shape.kv_heads));
  }
  if (!std::isfinite(shape.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale is ", shape.scale, "; it must be finite"));
  }
  // query_heads is at least kv_heads.
  status.Update(CheckRow("query_heads * key_dim", shape.query_heads, shape.key_dim));
  status.Update(CheckRow("query_heads * value_dim", shape.query_heads, shape.value_dim));
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Engine>> MakeEngine(const EngineConfig& config) {
  if (absl::Status status = CheckShape(config.shape); !status.ok()) return status;
  if (const auto* exact = std::get_if<ExactConfig>(&config.kind)) {
    return MakeExactEngine(config.shape, *exact);
  }
  const auto& linear = std::get<LinearConfig>(config.kind);
  if (linear.feature_map.name == kEfficientName) return MakeEfficientEngine(config.shape, linear);
  if (!linear.update.additive()) return MakeGatedEngine(config.shape, linear);
  return MakeLinearEngine(config.shape, linear);
}

}  // namespace attnd::engine
