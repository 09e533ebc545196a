// What an answer's numerator is divided by, and what is said about it: the one place where a
// denominator that is not safely positive is dealt with.
//
// Pure functions; any thread.
#ifndef ATTND_ENGINE_LINEAR_DENOMINATOR_GUARD_H_
#define ATTND_ENGINE_LINEAR_DENOMINATOR_GUARD_H_

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/engine_config.h"

namespace attnd::engine {

struct Guarded {
  float divisor;  // positive; 0: the output is zeros
  RowFlag flag;
};

// The divisor and flag for a finite denominator, by the policy of `config`:
//   not normalised: divisor 1, kOk.
//   kStrict:     the denominator; zeros where it is below epsilon.
//   kAddEpsilon: denominator + epsilon; zeros where that is not positive.
//   kClamp:      max(denominator, epsilon).
// The flag is kNonPositive for denominators <= 0 and kTiny for those in (0, epsilon), whatever the
// policy makes of them.
Guarded ApplyGuard(const LinearConfig& config, float denominator);

// InvalidArgument unless guard.epsilon is positive and finite.
absl::Status ValidateGuard(const LinearConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_DENOMINATOR_GUARD_H_
