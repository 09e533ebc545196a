// Rounding of rows to whole numbers of a few bits. Any thread.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_CODE_STEP_H_
#define ATTND_ENGINE_KDE_CERTIFIED_CODE_STEP_H_

#include <algorithm>
#include <limits>

namespace attnd::engine {

inline constexpr float kMaxKeyCode = 127.0F;

// The step of a row whose largest element has size `range`: range / most, or 0, as whose multiple
// everything is zero, where the row is so small that the step would lose digits, or too large.
inline float CodeStep(float range, float most) {
  constexpr float kLeastRange = 0x1p-100F;
  const bool held = range >= kLeastRange && range <= std::numeric_limits<float>::max() / 2;
  return held ? range / most : 0.0F;
}

// The whole number nearest to x, of ties the even one, within [-most, most]; |x| < 2^22. Adding
// 1.5 * 2^23 leaves no digits behind the point; std::nearbyint is a call for every element here.
inline float ToCode(float x, float most) {
  constexpr float kShift = 0x1.8p23F;
  const float whole = (x + kShift) - kShift;
  return std::clamp(whole, -most, most);
}

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_CODE_STEP_H_
