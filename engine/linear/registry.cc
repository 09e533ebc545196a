// The table of feature maps. It is explicit because a static library drops a file that nothing
// refers to, and with it any registration at program start.
#include "absl/strings/str_cat.h"
#include "engine/linear/feature_map.h"

namespace attnd::engine {
namespace {

struct Entry {
  const char* name;
  FeatureMapOr (*make)(const FeatureMapConfig& config, const LayerShape& shape);
};

constexpr Entry kFeatureMaps[] = {
    {"elu_plus_one", MakeEluPlusOne},
    {"relu", MakeRelu},
    {"squared_relu", MakeSquaredRelu},
    {"identity", MakeIdentity},
    {"favor_positive", MakeFavorPositive},
    {"favor_hyperbolic", MakeFavorHyperbolic},
    {"favor_sharp", MakeFavorSharp},
    {"random_fourier", MakeRandomFourier},
    {"cosformer", MakeCosformer},
    {"dpfp", MakeDpfp},
    {"taylor", MakeTaylor},
    {"learned", MakeLearned},
};

}  // namespace

FeatureMapOr MakeFeatureMap(const FeatureMapConfig& config, const LayerShape& shape) {
  for (const Entry& entry : kFeatureMaps) {
    if (config.name == entry.name) return entry.make(config, shape);
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

absl::Status RejectParameters(const FeatureMapConfig& config, unsigned taken) {
  const auto reject = [&](const char* field, const auto& value) {
    return absl::InvalidArgumentError(absl::StrCat("feature_map.", field, " is ", value,
                                                   "; it must not be set for ", config.name));
  };
  if ((taken & kEpsilon) == 0 && config.epsilon != 0.0F) return reject("epsilon", config.epsilon);
  if ((taken & kNu) == 0 && config.nu != 0) return reject("nu", config.nu);
  if ((taken & kHorizon) == 0 && config.horizon != 0) return reject("horizon", config.horizon);
  if ((taken & kRandomFeatures) == 0 && config.features != 0) {
    return reject("features", config.features);
  }
  if ((taken & kRandomFeatures) == 0 && config.seed != 0) return reject("seed", config.seed);
  if ((taken & kSharpness) == 0 && config.sharpness != 0.0F) {
    return reject("sharpness", config.sharpness);
  }
  if ((taken & kKeyScales) == 0 && !config.key_scales.empty()) {
    return reject("key_scales", absl::StrCat(config.key_scales.size(), " numbers"));
  }
  if ((taken & kWeights) == 0 && config.weights != nullptr) {
    return reject("weights", "a learned map");
  }
  return absl::OkStatus();
}

}  // namespace attnd::engine
