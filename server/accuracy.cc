#include "server/accuracy.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/error.h"

namespace attnd::server {

absl::StatusOr<engine::Accuracy> CheckAccuracy(const v1::Accuracy& accuracy,
                                               const std::string& field) {
  const double target = accuracy.target_error();
  if (!(target >= 0 && std::isfinite(target))) {
    return Error(v1::INVALID_FIELD, absl::StrCat(field, ".target_error is ", target,
                                                 "; it must be at least 0 and finite"));
  }
  if (accuracy.max_keys() < 0) {
    return Error(v1::INVALID_FIELD, absl::StrCat(field, ".max_keys is ", accuracy.max_keys(),
                                                 "; it must be at least 0"));
  }
  // -0 becomes 0, so that equal accuracies are equal as bytes.
  return engine::Accuracy{target + 0.0, accuracy.max_keys()};
}

engine::Accuracy InForce(const engine::Accuracy& asked, const engine::Accuracy& session) {
  return {asked.target_error > 0 ? asked.target_error : session.target_error,
          asked.max_keys > 0 ? asked.max_keys : session.max_keys};
}

}  // namespace attnd::server
