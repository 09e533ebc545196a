// The table of feature maps. It is explicit because a static library drops a file that nothing
// refers to, and with it any registration at program start.
#include "absl/strings/str_cat.h"
#include "engine/linear/feature_map.h"

namespace attnd::engine {
namespace {

struct Entry {
  const char* name;
  FeatureMapOr (*make)(const FeatureMapConfig& config, std::int64_t key_dim);
};

constexpr Entry kFeatureMaps[] = {
    {"elu_plus_one", MakeEluPlusOne},
    {"relu", MakeRelu},
    {"squared_relu", MakeSquaredRelu},
    {"identity", MakeIdentity},
};

}  // namespace

FeatureMapOr MakeFeatureMap(const FeatureMapConfig& config, std::int64_t key_dim) {
  for (const Entry& entry : kFeatureMaps) {
    if (config.name == entry.name) return entry.make(config, key_dim);
  }
  return absl::InvalidArgumentError(absl::StrCat("feature_map.name is \"", config.name,
                                                 "\"; it must be one of ", FeatureMapNames()));
}

std::string FeatureMapNames() {
  std::string names;
  for (const Entry& entry : kFeatureMaps) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.name);
  }
  return names;
}

absl::Status RejectEpsilon(const FeatureMapConfig& config) {
  if (config.epsilon == 0.0F) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("feature_map.epsilon is ", config.epsilon, "; it must be 0 for ", config.name));
}

}  // namespace attnd::engine
