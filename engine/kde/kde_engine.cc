#include "engine/kde/kde_engine.h"

#include <cmath>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/kde/kde_mode_engine.h"

namespace attnd::engine {
namespace {

absl::Status CheckConfig(const KdeConfig& config) {
  const Accuracy& accuracy = config.accuracy;
  if (!(accuracy.target_error >= 0.0 && std::isfinite(accuracy.target_error))) {
    return absl::InvalidArgumentError(absl::StrCat("kde.accuracy.target_error is ",
                                                   accuracy.target_error,
                                                   "; it must be at least 0 and finite"));
  }
  if (accuracy.max_keys < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kde.accuracy.max_keys is ", accuracy.max_keys, "; it must be at least 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Engine>> MakeKdeEngine(const LayerShape& shape,
                                                            const KdeConfig& config) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  switch (config.mode) {
    case KdeConfig::Mode::kAuto:
    case KdeConfig::Mode::kIndex:
      break;
    case KdeConfig::Mode::kCertified:
      return MakeCertifiedEngine(shape, config);
    case KdeConfig::Mode::kPaper:
      return MakePaperEngine(shape, config);
  }
  return MakeIndexEngine(shape, config);
}

}  // namespace attnd::engine
