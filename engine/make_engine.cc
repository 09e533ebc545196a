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
#include "engine/kde/kde_engine.h"
#include "engine/linear/linear_engine.h"
#include "engine/linear/window_engine.h"

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

// What a sliding window may be for the engine of this kind.
absl::Status CheckWindow(const EngineConfig& config) {
  const std::int64_t window = config.window_tokens;
  if (window < 0 || window > kMaxWindowTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window_tokens is ", window, "; it must be 0 (no window) to ", kMaxWindowTokens));
  }
  if (window != 0 && std::holds_alternative<KdeConfig>(config.kind)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window_tokens is ", window, "; it must be 0 for kde, whose index keeps all tokens"));
  }
  const auto* linear = std::get_if<LinearConfig>(&config.kind);
  if (window == 0 || linear == nullptr) return absl::OkStatus();
  // Delta rules cannot have one: what a token wrote depends on those before it. Decays and columns
  // with scales of their own could, but their blocks do not add up by themselves.
  if (!linear->update.additive() || linear->feature_map.name == kEfficientName) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window_tokens is ", window,
        "; it must be 0 with an update rule and for efficient, whose blocks do not simply add up"));
  }
  if (window % kBlockTokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("window_tokens is ", window, "; it must be a multiple of ", kBlockTokens,
                     " for a linear engine, whose window moves by whole blocks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Engine>> MakeEngine(const EngineConfig& config) {
  if (absl::Status status = CheckShape(config.shape); !status.ok()) return status;
  if (absl::Status status = CheckWindow(config); !status.ok()) return status;
  if (const auto* exact = std::get_if<ExactConfig>(&config.kind)) {
    return MakeExactEngine(config.shape, *exact, config.window_tokens);
  }
  if (const auto* kde = std::get_if<KdeConfig>(&config.kind)) {
    return MakeKdeEngine(config.shape, *kde);
  }
  const auto& linear = std::get<LinearConfig>(config.kind);
  if (linear.feature_map.name == kEfficientName) return MakeEfficientEngine(config.shape, linear);
  if (!linear.update.additive()) return MakeGatedEngine(config.shape, linear);
  if (config.window_tokens > 0) {
    return MakeWindowEngine(config.shape, linear, config.window_tokens);
  }
  return MakeLinearEngine(config.shape, linear);
}

}  // namespace attnd::engine
