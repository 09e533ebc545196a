// The accuracy that clients ask of kde layers.
//
// Pure functions; thread-safe.
#ifndef ATTND_SERVER_ACCURACY_H_
#define ATTND_SERVER_ACCURACY_H_

#include <string>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "engine/engine.h"

namespace attnd::server {

// Of a session that asks for neither a target nor a budget.
inline constexpr double kDefaultTargetError = 0.05;

// INVALID_FIELD, with the name of the field under `field`, for numbers below 0 or not finite.
absl::StatusOr<engine::Accuracy> CheckAccuracy(const v1::Accuracy& accuracy,
                                               const std::string& field);

// The accuracy in force: what a request asks for, and the session's where it leaves a field at 0.
engine::Accuracy InForce(const engine::Accuracy& asked, const engine::Accuracy& session);

}  // namespace attnd::server

#endif  // ATTND_SERVER_ACCURACY_H_
