// The flags that describe a session, for `create` and `bench`.
#ifndef ATTND_CLIENT_ATTNCTL_SESSION_FLAGS_H_
#define ATTND_CLIENT_ATTNCTL_SESSION_FLAGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::attnctl {

struct SessionFlags {
  std::string engine = "exact";
  std::string feature_map = "elu_plus_one";
  float epsilon = 0;
  std::int32_t nu = 0;
  std::int64_t horizon = 0;
  std::int64_t features = 0;
  std::uint64_t seed = 0;
  float sharpness = 0;
  std::vector<float> key_scales;
  std::string weights;
  bool unnormalized = false;
  std::string decay = "none";
  std::vector<float> log_decays;
  bool delta = false;
  bool read_first = false;
  std::vector<float> bonus;
  std::string guard = "strict";
  float guard_epsilon = 0;
  std::string storage = "f32";
  std::string mode = "auto";
  double target_error = 0;
  std::int64_t max_keys = 0;
  std::uint64_t session_seed = 0;
  std::int32_t layers = 1;
  std::int32_t kv_heads = 1;
  std::int32_t query_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  std::optional<float> scale;
  std::int64_t window = 0;
  std::string durability = "ephemeral";
  std::string time_to_live;
  std::vector<std::string> labels;
};

// "a=b" entries as a map. INVALID_ARGUMENT names the entry.
absl::StatusOr<std::map<std::string, std::string>> ParseLabels(
    const std::vector<std::string>& entries);

// "90s", "24h", "1h30m"; positive. INVALID_ARGUMENT names `flag`.
absl::StatusOr<absl::Duration> ParsePositiveDuration(const std::string& text,
                                                     const std::string& flag);

// The feature maps of the contract, as --feature-map takes them.
std::vector<std::string> FeatureMapNames();

// The modes of kde, as --mode takes them.
std::vector<std::string> KdeModeNames();

// What --durability takes.
std::vector<std::string> DurabilityNames();

// One group of layers as the flags say; what is left out is left to the server.
absl::StatusOr<v1::SessionConfig> ConfigOf(const SessionFlags& flags);

// A SessionConfig in JSON, for what the flags cannot say (groups of unlike layers).
absl::StatusOr<v1::SessionConfig> ReadConfigFile(const std::string& path);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_SESSION_FLAGS_H_
